package imagepin

import "testing"

func TestInRepository(t *testing.T) {
	for ref, want := range map[string]bool{
		"registry.example:5000/team/app:v1":          true,
		"registry.example:5000/team/app@sha256:abcd": true,
		"registry.example:5000/team/app":             true,
		"registry.example:5000/team/app2:v1":         false,
		"registry.example:5000/team/app/sub:v1":      false,
		"registry.example:5000/team:v1":              false,
		"registry.example/team/app:v1":               false,
	} {
		if got := InRepository(ref, "registry.example:5000/team/app"); got != want {
			t.Errorf("InRepository(%q): got %v, want %v", ref, got, want)
		}
	}
}
