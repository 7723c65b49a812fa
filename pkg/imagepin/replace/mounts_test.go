//go:build linux

package replace

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestUsedFeature(t *testing.T) {
	all := []string{"index", "nfs_export", "metacopy", "redirect_dir", "xino_auto"}
	off := []string{"index=off", "nfs_export=off", "metacopy=off", "redirect_dir=off", "xino=off"}
	for _, test := range []struct {
		options, kernel []string
		want            string
	}{
		{nil, nil, ""},
		{[]string{"index=off", "lowerdir=/a:/b"}, []string{"index"}, ""},
		{nil, []string{"index"}, "index"},
		{[]string{"index=on"}, nil, "index"},
		{nil, []string{"nfs_export"}, "nfs_export"},
		{[]string{"metacopy=on"}, nil, "metacopy"},
		{nil, []string{"metacopy"}, "metacopy"},
		{[]string{"userxattr"}, []string{"metacopy", "redirect_dir"}, ""},
		{[]string{"userxattr"}, []string{"xino_auto"}, "xino"},
		{[]string{"redirect_dir=on"}, nil, "redirect_dir"},
		{[]string{"redirect_dir=follow"}, []string{"redirect_dir"}, ""},
		{[]string{"xino=auto"}, nil, "xino"},
		{off, all, ""},
	} {
		got := usedFeature(test.options, func(name string) bool { return slices.Contains(test.kernel, name) })
		if got != test.want {
			t.Errorf("options %q, kernel %q: got %q, want %q", test.options, test.kernel, got, test.want)
		}
	}
}

func TestParseMounts(t *testing.T) {
	dir := t.TempDir()
	here := filepath.Join(dir, "62", "fs")
	elsewhere := filepath.Join(dir, "other", "62", "fs")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{here, elsewhere} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	snapshots := "upperdir=" + dir + "/63/fs"
	for options, want := range map[string]bool{
		"rw,lowerdir=" + here + ":/x/61/fs,upperdir=/x/63/fs":                             true,
		"rw,lowerdir=/x/64/fs:" + here:                                                    true,
		"rw,lowerdir+=/x/64/fs,lowerdir+=" + here:                                         true,
		"rw,lowerdir=64/fs:62/fs:61/fs":                                                   true, // relative, and no upper directory
		"rw,lowerdir=64/fs:62/fs:61/fs," + snapshots:                                      true,
		"rw,lowerdir=64/fs:62/fs:61/fs,upperdir=/x/63/fs":                                 false, // of another snapshotter
		"rw,lowerdir=64/fs:162/fs:61/fs," + snapshots:                                     false,
		"rw,lowerdir=/tmp/ovl-idmapped1/62/fs:/tmp/ovl-idmapped1/61/fs," + snapshots:      true,
		"rw,lowerdir=/tmp/ovl-idmapped1/64/fs:/tmp/ovl-idmapped1/61/fs," + snapshots:      false,
		"rw,lowerdir=/tmp/ovl-idmapped1/62/fs:/tmp/ovl-idmapped1/61/fs,upperdir=/x/63/fs": false,
		"rw,lowerdir=/tmp/ovl-idmapped1/fs," + snapshots:                                  true, // a single one
		"rw,lowerdir=" + elsewhere:                                                        false,
		"rw,lowerdir=/gone/62/fs":                                                         false,
		"rw,lowerdir=" + link + "/62/fs":                                                  true, // the same directory
		"rw,lowerdir=/x/162/fs,upperdir=" + here + "-not":                                 false,
		"rw": false,
	} {
		text := `36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw` + "\n40 36 0:50 / /merged rw shared:7 - overlay overlay " + options + "\n"
		mounts, err := parseMounts(text)
		if err != nil || len(mounts) != 2 || mounts[0].point != "/mnt 2" || mounts[0].root != "/mnt1" {
			t.Fatalf("got %+v, %v", mounts, err)
		}
		if got := mounts[1].uses(wantedDirectory{path: here, device: "8:1", root: "/62/fs"}); got != want {
			t.Errorf("%s: got %v, want %v", options, got, want)
		}
	}
	if _, err := parseMounts("36 35 98:0 /\n"); err == nil {
		t.Error("a short line is accepted")
	}
}
