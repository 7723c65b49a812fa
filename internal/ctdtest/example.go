package ctdtest

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// Example returns what a [Node] of an Example function needs of a test, and a function that ends it. A failure panics.
func Example() (_ testing.TB, end func()) {
	dir, err := os.MkdirTemp("", "imagepin-example-")
	if err != nil {
		panic(err)
	}
	e := &example{dir: dir}
	return e, e.end
}

type example struct {
	testing.TB // nil
	dir        string
	cleanups   []func()
}

func (*example) Helper()                   {}
func (*example) Context() context.Context  { return context.Background() }
func (e *example) TempDir() string         { return e.dir }
func (e *example) Cleanup(f func())        { e.cleanups = append(e.cleanups, f) }
func (*example) Error(args ...any)         { panic(fmt.Sprint(args...)) }
func (*example) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (*example) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func (e *example) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
	if err := os.RemoveAll(e.dir); err != nil {
		panic(err)
	}
}
