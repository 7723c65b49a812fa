package packages

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/imagepin/imagepin/integration/machine"
	"github.com/imagepin/imagepin/integration/testkit"
)

// signed returns a copy of the output of the build, as links, in which hack/sign-release.sh has signed the repositories.
func signed(t *testing.T) string {
	t.Helper()
	copied, home := t.TempDir(), t.TempDir()
	script(t, "home="+home, "copied="+copied, "dist="+dist(), "sign="+filepath.Join(repository, "hack", "sign-release.sh"), `script=
		export GNUPGHOME=$home
		chmod 700 "$home"
		gpg --batch --quiet --passphrase "" --quick-generate-key test@example.com ed25519 sign never
		cp --recursive --link "$dist/repository" "$copied"
		mkdir "$copied/release"
		cp "$dist/SHA256SUMS" "$copied/release"
		$sign "$copied" test@example.com
		gpg --verify "$copied/release/SHA256SUMS.asc" "$copied/release/SHA256SUMS"
		gpgconf --kill all`)
	return copied
}

// TestAPTRepository installs the packages with apt from the signed repository, served over HTTP.
func TestAPTRepository(t *testing.T) {
	t.Parallel()
	copied := signed(t)
	apt := filepath.Join(copied, "repository", "apt")
	server, requests := serve(t, apt)
	m := machine.Start(t)
	m.CopyFile("/etc/apt/keyrings/imagepin.asc", filepath.Join(copied, "release", "imagepin.asc"), 0o644)
	m.WriteFile("/etc/apt/sources.list", "deb [signed-by=/etc/apt/keyrings/imagepin.asc] "+server+" stable main\n", 0o644)
	m.Run("apt-get update --error-on=any")
	wantRecommended(t, m)
	m.Run("apt-get install --yes imagepin-containerd")
	if got, want := m.Run("imagepin --version"), m.Run("dpkg-query --show --showformat '${Version}' imagepin"); !strings.Contains(got, strings.Replace(want, "~", "-", 1)) {
		t.Errorf("the command is %s, the package %s", got, want)
	}
	if got := m.Run("/usr/lib/imagepin/bin/containerd --version"); !strings.Contains(got, "+imagepin") {
		t.Errorf("got containerd %s", got)
	}
	if r := requests(); !slices.ContainsFunc(r, func(path string) bool { return strings.Contains(path, "/by-hash/SHA256/") }) {
		t.Errorf("apt did not request the index by its hash: %q", r)
	}
	// apt refuses a Release file that the key did not sign.
	release := filepath.Join(apt, "dists", "stable", "InRelease")
	text, err := os.ReadFile(release)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(release, bytes.Replace(text, []byte("Label: imagepin"), []byte("Label: changed"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := m.Try(testkit.Context(t), "apt-get update --error-on=any"); err == nil || !strings.Contains(out, "BADSIG") {
		t.Errorf("with a changed Release file: got %v, %s", err, out)
	}
}

// wantRecommended fails the test if apt would install a containerd that imagepin serve refuses.
func wantRecommended(t *testing.T, m *machine.Machine) {
	t.Helper()
	m.WriteFile("/etc/apt/sources.list.d/distribution.list", "deb [trusted=yes] file:/srv/distribution ./\n", 0o644)
	for version, installed := range map[string]bool{"1.6.20~ds1-1+deb12u1": false, "2.1.0~rc.0-1": true, "2.1.9-1": true} {
		m.WriteFile("/srv/distribution/Packages", "Package: containerd\nVersion: "+version+"\nArchitecture: all\nMaintainer: Test <test@example.com>\n"+
			"Filename: ./containerd.deb\nSize: 1\nSHA256: "+strings.Repeat("0", 64)+"\nDescription: stands in for containerd\n", 0o644)
		m.Run("apt-get update --error-on=any")
		if out := m.Run("apt-get install --simulate imagepin"); !strings.Contains(out, "Inst imagepin ") || strings.Contains(out, "Inst containerd ") != installed {
			t.Errorf("with containerd %s, want it installed: %t, got %s", version, installed, out)
		}
	}
	m.Run("rm -r /etc/apt/sources.list.d/distribution.list /srv/distribution")
	m.Run("apt-get update --error-on=any")
}

// serve serves a directory. It returns the URL, and a function that returns the paths of all requests.
func serve(t *testing.T, dir string) (url string, requests func() []string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	files := http.FileServer(http.Dir(dir))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

// dnfRoot mounts the root of hack/dnf-root.sh so that changes stay in a directory of the test, and runs $commands in it.
const dnfRoot = `
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
mount --rbind /dev "$dir/root/dev"
mount -t proc proc "$dir/root/proc"
cp "$key" "$dir/root/key.asc"
exec chroot "$dir/root" /usr/bin/env -i LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -euc "$commands"
`

// TestRPMRepository installs the packages with dnf from the signed repository, served over HTTP.
func TestRPMRepository(t *testing.T) {
	t.Parallel()
	copied := signed(t)
	out, err := exec.Command(filepath.Join(repository, "hack", "dnf-root.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	server, _ := serve(t, filepath.Join(copied, "repository", "rpm"))
	dir := t.TempDir()
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(t, "script="+dnfRoot, "lower="+strings.TrimSpace(string(out)), "dir="+dir, "key="+filepath.Join(copied, "release", "imagepin.asc"), `commands=
		mkdir -p /etc/yum.repos.d
		cat >/etc/yum.repos.d/imagepin.repo <<-END
			[imagepin]
			name=imagepin
			baseurl=`+server+`
			repo_gpgcheck=1
			gpgcheck=0
			gpgkey=file:///key.asc
		END
		set -x
		dnf --assumeyes --releasever=1 --setopt=install_weak_deps=False install imagepin-containerd
		rpm --verify imagepin imagepin-containerd
		/usr/lib/imagepin/bin/containerd --version
		test "$(dnf --releasever=1 --quiet repoquery --list imagepin | sort)" = "$(rpm --query --list imagepin | sort)"
		dnf --assumeyes --releasever=1 remove imagepin
		test ! -e /usr/bin/imagepin
		test ! -e /usr/lib/imagepin/bin/containerd`)
}

// script runs the bash script in the variable script, in a mount namespace and a PID namespace.
func script(t *testing.T, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(testkit.Context(t), "unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", "eval \"$script\"")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
