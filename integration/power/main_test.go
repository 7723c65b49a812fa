package power

import (
	"fmt"
	"os"
	"testing"

	"github.com/imagepin/imagepin/integration/power/disk"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) {
	err := disk.Check()
	if err == nil {
		err = disk.Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.Main(m)
}
