package registry

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
)

// TestMain fails if a client logs with the logger of the process: [quiet] sees only what is logged with the logger of a context.
func TestMain(m *testing.M) {
	var logged bytes.Buffer
	logrus.SetOutput(&logged) // it is the logger of containerd's packages
	code := m.Run()
	if logged.Len() > 0 {
		fmt.Fprintf(os.Stderr, "logged %s", logged.Bytes())
		code = 1
	}
	os.Exit(code)
}
