package cri

import (
	"fmt"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestRunAsNumbers replaces names that upstream would look up in an image without files.
func TestRunAsNumbers(t *testing.T) {
	number := func(n int64) *runtime.Int64Value { return &runtime.Int64Value{Value: n} }
	type security = runtime.LinuxContainerSecurityContext
	for _, c := range []struct {
		image string
		given *security // nil: no Linux configuration
		want  string    // kind and name, or "user name/user/group" that upstream gets
	}{
		{"", nil, "/-/-"},
		{"1000", nil, "/-/-"},
		{"1000:1000", nil, "/-/-"},
		{":5", nil, "/-/-"},
		{"root", nil, "/0/-"},
		{"root:root", nil, "/0/0"},
		{"root:5", nil, "/0/5"},
		{"1000:root", nil, "/1000/0"},
		{"app", nil, "user app"},
		{"1000:app", nil, "group app"},
		{"root:app", nil, "group app"},
		{"app", &security{RunAsUser: number(7)}, "/7/-"},
		{"app", &security{RunAsUsername: "1000"}, "1000/-/-"},
		{"app", &security{RunAsUsername: "root", RunAsGroup: number(5)}, "/0/5"},
		{"1000", &security{RunAsUsername: "app", RunAsUser: number(7)}, "user app"},
		{"1000", &security{RunAsUsername: "root", RunAsUser: number(7)}, "/0/-"},
		{"root", &security{RunAsGroup: number(5)}, "/-/5"}, // upstream refuses a group without a user
	} {
		config := &runtime.ContainerConfig{}
		if c.given != nil {
			config.Linux = &runtime.LinuxContainerConfig{SecurityContext: c.given}
		}
		kind, name := runAsNumbers(config, imagepin.Entry{User: c.image})
		got := kind + " " + name
		if name == "" {
			text := func(v *runtime.Int64Value) string {
				if v == nil {
					return "-"
				}
				return fmt.Sprint(v.GetValue())
			}
			s := config.GetLinux().GetSecurityContext()
			got = s.GetRunAsUsername() + "/" + text(s.GetRunAsUser()) + "/" + text(s.GetRunAsGroup())
		}
		if got != c.want {
			t.Errorf("image user %q, %v: got %s, want %s", c.image, c.given, got, c.want)
		}
	}
}
