package main

import (
	"os"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDemo runs the demo, which checks itself, and checks what it prints.
func TestDemo(t *testing.T) {
	testkit.RunDemo(t, testkit.Build(t, "."), []string{
		`(?m)^ +web-\S+ +n1 +platform=linux/\S+ version=v1$`,
		`(?m)^ +web-\S+ +n3 +platform=linux/\S+ version=v2$`,
		`(?ms)^ +\$ kubectl imagepin drift; echo .*^ +ReplicaSet/web-\S+ .* 2 +n2,n3$.*^ +10$.*^ +No drift found in 3 pods of 1 owner\.\n +0$`,
		`(?ms)^ +web-\S+ +n2 +platform=linux/\S+ version=v3$.*^ +web-\S+ +n2 +platform=linux/\S+ version=v2$`,
		`(?m)^Result after `,
	})
}

// TestInterrupted interrupts the demo while the nodes run pods.
func TestInterrupted(t *testing.T) {
	testkit.InterruptDemo(t, testkit.Build(t, "."), "3. ", os.Interrupt)
}
