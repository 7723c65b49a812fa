package upstream

import "testing"

// TestImageUser has the cases of getUserFromImage.
func TestImageUser(t *testing.T) {
	for in, want := range map[string]struct {
		uid  int64
		name string
		has  bool
	}{
		"":                       {0, "", false},
		"0":                      {0, "", true},
		"1000":                   {1000, "", true},
		"1000:2000":              {1000, "", true},
		"-1":                     {-1, "", true},
		"nobody":                 {0, "nobody", false},
		"nobody:users":           {0, "nobody", false},
		"1000:users":             {1000, "", true},
		":2000":                  {0, "", false},
		"a:b:c":                  {0, "a", false},
		" 1":                     {0, " 1", false},
		"0x10":                   {0, "0x10", false},
		"9223372036854775808":    {0, "9223372036854775808", false},
		"ContainerAdministrator": {0, "ContainerAdministrator", false},
	} {
		uid, name := ImageUser(in)
		if (uid != nil) != want.has || uid.GetValue() != want.uid || name != want.name {
			t.Errorf("%q: got %v, %q, want %+v", in, uid, name, want)
		}
	}
}
