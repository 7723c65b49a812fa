package testkit

import (
	"os"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
)

// Verifier is an image verifier plugin of a node: a script that records its calls and allows images until [Verifier.Refuse].
type Verifier struct {
	T    *testing.T
	Node *node.Node
}

// NewVerifier installs a verifier on a node.
func NewVerifier(t *testing.T, n *node.Node) Verifier {
	t.Helper()
	// Written elsewhere and moved: what is half written cannot be run.
	script := "#!/bin/sh\necho \"$2 $4\" >> " + n.Path("asked") + "\n" +
		"while [ -e " + n.Path("pause") + " ]; do touch " + n.Path("paused") + "; sleep 0.02; done\n" +
		"if [ -e " + n.Path("refuse") + " ]; then echo 'nobody signed it'; exit 1; fi\n"
	if err := os.WriteFile(n.Path("verifier"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.Path("verifier"), n.VerifierDir()+"/verifier"); err != nil {
		t.Fatal(err)
	}
	return Verifier{t, n}
}

// Refuse makes the verifier refuse all images, or none.
func (v Verifier) Refuse(everything bool) {
	v.T.Helper()
	err := os.Remove(v.Node.Path("refuse"))
	if everything {
		err = os.WriteFile(v.Node.Path("refuse"), nil, 0o644)
	}
	if err != nil {
		v.T.Fatal(err)
	}
}

// Pause makes calls of the verifier wait until they are not paused any more.
func (v Verifier) Pause(pause bool) {
	v.T.Helper()
	if err := os.RemoveAll(v.Node.Path("paused")); err != nil {
		v.T.Fatal(err)
	}
	err := os.RemoveAll(v.Node.Path("pause"))
	if pause {
		err = os.WriteFile(v.Node.Path("pause"), nil, 0o644)
	}
	if err != nil {
		v.T.Fatal(err)
	}
}

// Paused reports whether a call of the verifier waits.
func (v Verifier) Paused() bool {
	_, err := os.Stat(v.Node.Path("paused"))
	return err == nil
}

// CheckAsked fails the test unless the verifier got exactly these calls, "reference digest", since the last check.
func (v Verifier) CheckAsked(what string, questions ...string) {
	v.T.Helper()
	b, err := os.ReadFile(v.Node.Path("asked"))
	if err != nil && !os.IsNotExist(err) {
		v.T.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(b)), strings.Join(questions, "\n"); got != want {
		v.T.Errorf("%s: the verifier was called\n%s\nnot\n%s", what, got, want)
	}
	if err := os.WriteFile(v.Node.Path("asked"), nil, 0o644); err != nil {
		v.T.Fatal(err)
	}
}

// RootCause returns the gRPC status below the context that the test kit has added to an error.
func RootCause(err error) error {
	for err != nil {
		below, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = below.Unwrap()
	}
	return nil
}
