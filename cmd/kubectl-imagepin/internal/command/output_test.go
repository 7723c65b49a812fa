package command

import (
	"reflect"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/drift"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/explain"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/seed"
)

// TestNumbersAreNumbers checks that no type that is printed has a number that JSON has as a string: jq would compare it with a
// number without an error.
func TestNumbersAreNumbers(t *testing.T) {
	seen := make(map[reflect.Type]bool)
	var check func(reflect.Type)
	check = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			check(of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				f := of.Field(i)
				if _, options, _ := strings.Cut(f.Tag.Get("json"), ","); strings.Contains(options, "string") {
					t.Errorf("%s.%s is a string in JSON", of, f.Name)
				}
				check(f.Type)
			}
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[drift.Report](), reflect.TypeFor[explain.Explanation](), reflect.TypeFor[seed.Report]()} {
		check(of)
	}
	if !seen[reflect.TypeFor[int]()] {
		t.Error("there is no number")
	}
}
