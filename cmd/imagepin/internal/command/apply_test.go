package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const (
	webRef = "registry.example.com/shop/web:v3"
	// lockedYAML is a lock of one image.
	lockedYAML = "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n- image: registry.example.com/shop/app@sha256:1111111111111111111111111111111111111111111111111111111111111111\n"
)

// applyMessages are the messages of an apply of a bundle.
func applyMessages() []*api.ApplyResponse {
	at := func(phase string, done, total int64) *api.ApplyResponse {
		return &api.ApplyResponse{Progress: &api.ApplyProgress{Phase: phase, Lock: digestNew, Done: done, Total: total}}
	}
	return []*api.ApplyResponse{
		at("verifying", 0, 0), at("verifying", 5<<20, 20<<20), at("verifying", 6<<20, 20<<20), at("verifying", 20<<20, 20<<20),
		at("importing", 0, 12<<20), at("importing", 12<<20, 12<<20),
		at("preparing", 0, 3), at("preparing", 1, 3), at("preparing", 3, 3), at("switching", 3, 3),
		{Result: &api.ApplyResult{Lock: digestNew, Previous: digestOld, Images: 3, Locked: 4, MadeReady: 2, Changes: []*api.LockChange{
			{Ref: appRef, Before: digestOld, After: digestNew},
			{Ref: "registry.example.com/shop/old:v1", Before: digestOld},
			{Ref: webRef, After: digestNew},
		}}},
	}
}

// cleanNode is a node that has and runs what its lock names.
func cleanNode() *api.LockStatusResponse {
	return &api.LockStatusResponse{
		Lock: &api.Lock{Digest: digestNew, Name: "bundle.tar.zst", Bundle: true, AppliedAt: ago(3 * time.Hour), Images: 2},
		Images: []*api.LockedImage{
			{Ref: appRef, Digest: digestNew, Id: "shop/app:v1", State: "running", Containers: 2, Ready: []*api.Target{appKey().Target}},
			{Ref: webRef, Digest: digestOld, Id: webRef, State: "ready", Ready: []*api.Target{appKey().Target, armKey().Target}},
		},
		Counts: &api.LockCounts{Locked: 2, Ready: 2, Running: 1},
	}
}

// lockedNode is a node that differs from its lock in each way, and whose last apply failed.
func lockedNode() *api.LockStatusResponse {
	st := cleanNode()
	st.Previous = &api.Lock{Digest: digestOld, Name: "images.lock.yaml", AppliedAt: ago(50 * time.Hour), Images: 1, Handlers: []string{"kata", "runc"}}
	st.Failed = &api.LockFailure{At: ago(time.Minute), Name: "next.tar", Error: "NotInBundle: app\nMake the bundle for this platform too."}
	st.Images[1].State, st.Images[1].Ready, st.Images[1].Missing = "missing", nil, st.Images[1].Ready
	st.Extra = []*api.ExtraImage{{ImageId: imageID, Refs: []string{"docker.io/library/busybox:1", "docker.io/library/busybox@" + digestOld}, Containers: 1, Digest: digestOld}, {ImageId: chainID}}
	st.Drifted = []*api.DriftedContainer{{Namespace: "shop", Pod: "app-7d4b9c-x2x9k", Container: "app", Ref: appRef, Locked: digestNew, ImageId: imageID, Digest: digestOld}, {Namespace: "shop", Pod: "app-0", Container: "app", Ref: appRef, Locked: digestNew, ImageId: imageID}}
	st.Counts = &api.LockCounts{Locked: 2, Ready: 1, Missing: 1, Running: 1, Extra: 2, Drifted: 2}
	return st
}

// TestApplyProgress checks that an apply prints one line for each phase and for each tenth of it, and none with JSON.
func TestApplyProgress(t *testing.T) {
	want := strings.Join([]string{
		"verifying", "verifying: 5MiB of 20MiB", "verifying: 6MiB of 20MiB", "verifying: 20MiB of 20MiB",
		"importing: 0B of 12MiB", "importing: 12MiB of 12MiB",
		"preparing: 0 of 3 (images for each target)", "preparing: 1 of 3 (images for each target)", "preparing: 3 of 3 (images for each target)", "switching: 3 of 3 (images for each target)", "",
	}, "\n")
	for _, args := range []string{"apply", "rollback"} {
		c := recorded()
		c.apply = append(c.apply[:3:3], c.apply[2:]...) // the same tenth twice
		if got := run(t, c, args); got.code != 0 || got.err != want {
			t.Errorf("%s: exit code %d, printed\n%s\nwant\n%s", args, got.code, got.err, want)
		}
		if got := run(t, recorded(), args, "-o", outputJSON); got.code != 0 || got.err != "" {
			t.Errorf("%s as JSON: exit code %d, printed %q", args, got.code, got.err)
		}
	}
}

// TestApplyArguments checks what is sent for each form of the argument.
func TestApplyArguments(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"images.lock.yaml": lockedYAML, "bundle.tar.zst": "\x50\x2a\x4d\x18\x04\x00\x00\x00", "tar": strings.Repeat("\x00", 257) + "ustar\x0000", "empty": "",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for arg, want := range map[string]*api.ApplyRequest{
		"images.lock.yaml":        {Name: "images.lock.yaml", Lock: []byte(lockedYAML)},
		dir + "/images.lock.yaml": {Name: "images.lock.yaml", Lock: []byte(lockedYAML)},
		"tar":                     {Path: dir + "/tar"},
		"-":                       {Name: "standard input", Lock: []byte(lockedYAML)},
	} {
		c := recorded()
		_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
		got := runAt(t, address, strings.NewReader(lockedYAML), "apply", arg)
		if got.code != 0 || !proto.Equal(c.request, want) {
			t.Errorf("apply %s: exit code %d, %s: got request %v, want %v", arg, got.code, got.err, c.request, want)
		}
	}
	for args, want := range map[string]string{
		"apply -":                 "standard input is empty",
		"apply empty":             "empty is empty",
		"apply absent":            "stat absent: no such file or directory: not found",
		"apply .":                 `InvalidRequest: file ".": is not a regular file`,
		"apply a b":               "imagepin apply takes [LOCK|BUNDLE|-], got 2 arguments, see imagepin apply --help",
		"apply --dry-run -d":      "--dry-run and --detach exclude each other",
		"apply --cancel a":        "--cancel has neither an argument nor --dry-run or --detach",
		"apply --cancel -d":       "--cancel has neither an argument nor --dry-run or --detach",
		"apply --limit-rate fast": `--limit-rate "fast" must be a size such as 10MiB`,
		"apply --limit-rate=-1":   `--limit-rate "-1" must be a size such as 10MiB`,
		"rollback --limit-rate x": `--limit-rate "x" must be a size such as 10MiB`,
		"limit-rate fast":         `RATE "fast" must be a size such as 10MiB`,
		"limit-rate 5 --reset":    "RATE and --reset cannot be used together",
		"rollback x":              "imagepin rollback takes no arguments, got 1 argument, see imagepin rollback --help",
		"lock status x":           "imagepin lock status takes no arguments, got 1 argument, see imagepin lock status --help",
		"lock rm x":               "imagepin lock rm takes no arguments, got 1 argument, see imagepin lock rm --help",
	} {
		failed(t, runAt(t, "/absent", bytes.NewReader(nil), strings.Fields(args)...), want)
	}
}

// TestApplyDetached checks that a detached apply has no result, and that another one must have one.
func TestApplyDetached(t *testing.T) {
	const started = "Started. To see the progress, run: imagepin lock status\n"
	c := recorded()
	c.apply = nil
	if got := run(t, c, "apply", "--detach"); got.code != 0 || got.out != started || got.err != "" {
		t.Errorf("exit code %d, printed %q and %q", got.code, got.out, got.err)
	}
	if got := run(t, c, "apply", "--detach", "-o", outputJSON); got.code != 0 || got.out != "" || got.err != started {
		t.Errorf("as JSON: exit code %d, printed %q and %q", got.code, got.out, got.err)
	}
	for _, args := range []string{"apply", "rollback"} {
		failed(t, run(t, c, args), "containerd ended the call without a result")
	}
}

// TestApplyCancel checks that --cancel only cancels.
func TestApplyCancel(t *testing.T) {
	c := recorded()
	got := run(t, c, "apply", "--cancel")
	if _, ok := c.request.(*api.CancelApplyRequest); !ok || got.code != 0 || got.out != "Canceled the apply. To see the lock of the node, run: imagepin lock status\n" {
		t.Errorf("sent %T, exit code %d, printed %q and %q", c.request, got.code, got.out, got.err)
	}
}

// TestApplyFails checks that a failure after progress is printed without the password.
func TestApplyFails(t *testing.T) {
	c := recorded()
	c.apply = c.apply[:1]
	c.err = status.Error(codes.Unauthenticated, "PullAccessDenied: app: bob hunter2\nCheck the credential hunter2.")
	for _, args := range []string{"apply", "rollback"} {
		got := run(t, c, args, "-u", "bob:hunter2")
		if want := "verifying\nimagepin: PullAccessDenied: app: bob [password]\nCheck the credential [password].\n"; got.code != 1 || got.out != "" || got.err != want {
			t.Errorf("%s: exit code %d, printed %q and %q, want %q", args, got.code, got.out, got.err, want)
		}
	}
}

// TestLockStatusExpects checks the exit code of lock status --expect, for a lock by its digest and in a file.
func TestLockStatusExpects(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images.lock.yaml")
	if err := os.WriteFile(file, []byte(lockedYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := lock.Parse([]byte(lockedYAML))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	inFile := cleanNode()
	inFile.Lock.Digest = d.String()
	none := &api.LockStatusResponse{}
	for _, test := range []struct {
		node   *api.LockStatusResponse
		expect string
		code   int
		err    string
	}{
		{inFile, file, 0, ""},
		{inFile, d.String(), 0, ""},
		{cleanNode(), file, 10, "imagepin: the lock of the node is " + digestNew + ", expected " + d.String() + "\n"},
		{none, file, 10, "imagepin: the lock of the node is none, expected " + d.String() + "\n"},
		{none, digestNew, 10, "imagepin: the lock of the node is none, expected " + digestNew + "\n"},
		{lockedNode(), digestNew, 10, ""},
	} {
		c := recorded()
		c.lock = test.node
		got := run(t, c, "lock", "status", "--expect", test.expect)
		if got.code != test.code || got.err != test.err || !strings.HasPrefix(got.out, "Lock:") {
			t.Errorf("--expect %s: exit code %d, printed %q and %q, want %d and %q", test.expect, got.code, got.out, got.err, test.code, test.err)
		}
	}
	failed(t, runAt(t, "/absent", nil, "lock", "status", "--expect", "sha256:1"), `--expect "sha256:1" is neither a file nor the whole digest of a lock`)
	if err := os.WriteFile(file, []byte("kind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runAt(t, "/absent", nil, "lock", "status", "--expect", file); got.code != 1 || !strings.HasPrefix(got.err, "imagepin: InvalidLock: ") {
		t.Errorf("--expect with another file: exit code %d, printed %q", got.code, got.err)
	}
}

// TestLockStatusFails checks that each difference alone gives exit code 10.
func TestLockStatusFails(t *testing.T) {
	for name, change := range map[string]func(*api.LockStatusResponse){
		"missing":    func(st *api.LockStatusResponse) { st.Counts.Missing = 1 },
		"drifted":    func(st *api.LockStatusResponse) { st.Counts.Drifted = 1 },
		"failed":     func(st *api.LockStatusResponse) { st.Failed = lockedNode().Failed },
		"unreadable": func(st *api.LockStatusResponse) { st.Unreadable = "it is damaged" },
	} {
		c := recorded()
		c.lock = cleanNode()
		change(c.lock)
		if got := run(t, c, "lock", "status"); got.code != 10 || got.err != "" {
			t.Errorf("%s: exit code %d, printed %q", name, got.code, got.err)
		}
	}
}
