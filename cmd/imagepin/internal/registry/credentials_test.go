package registry

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/registrytest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// dockerConfig sets docker's configuration.
func dockerConfig(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "config.json"), text)
	t.Setenv("DOCKER_CONFIG", dir)
}

// helper installs a credential helper, which appends its input to the file that helper returns.
func helper(t *testing.T, name, script string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	writeFile(t, filepath.Join(dir, "docker-credential-"+name), "#!/bin/sh\n(cat; echo \" $1\") >>"+calls+"\n"+script)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return calls
}

func TestDockerCredentials(t *testing.T) {
	calls := helper(t, "test", `echo '{"ServerURL":"x","Username":"user","Secret":"secret"}'`)
	r := registrytest.New(t)
	r.Image("shop/cart:1", "cart", "linux/amd64")
	r.Image("shop/web:1", "web", "linux/amd64")
	basicAuth(r, "user", "secret")
	auth := base64.StdEncoding.EncodeToString([]byte("user:secret"))
	for name, config := range map[string]string{
		"helper": fmt.Sprintf(`{"credHelpers": {%q: "test"}}`, r.Host()),
		"store":  `{"credsStore": "test"}`,
		"auths":  fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.Host(), auth),
		"url":    fmt.Sprintf(`{"auths": {"http://%s/v1/": {"auth": %q}}}`, r.Host(), auth),
	} {
		t.Run(name, func(t *testing.T) {
			dockerConfig(t, config)
			c, err := New(Config{HostsDirs: []string{}})
			if err != nil {
				t.Fatal(err)
			}
			for _, repo := range []string{"/shop/cart:1", "/shop/web:1"} {
				if _, err := c.Resolve(quiet(t), named(t, r.Host()+repo)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got, _ := os.ReadFile(calls)
	if want := strings.Repeat(r.Host()+" get\n", 2); string(got) != want {
		t.Errorf("got calls of the helper\n%s, want one for each client\n%s", got, want)
	}
}

func TestDockerHub(t *testing.T) {
	calls := helper(t, "test", `echo '{"Username":"<token>","Secret":"identity"}'`)
	dockerConfig(t, `{"credsStore": "test"}`)
	ask, err := DockerCredentials()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ask("registry-1.docker.io")
	if err != nil || got != (resolve.Credential{IdentityToken: "identity"}) {
		t.Errorf("got %#v, %v, want an identity token", got, err)
	}
	if got, _ := os.ReadFile(calls); string(got) != "https://index.docker.io/v1/ get\n" {
		t.Errorf("got call %q", got)
	}
}

func TestHelperFails(t *testing.T) {
	helper(t, "locked", "echo the keychain is locked; exit 1")
	helper(t, "none", "echo credentials not found in native keychain; exit 1")
	r := registrytest.New(t)
	r.Image("shop/cart:1", "cart", "linux/amd64")
	basicAuth(r, "user", "secret")
	ref := named(t, r.Host()+"/shop/cart:1")
	for store, want := range map[string]string{"locked": "the keychain is locked", "absent": "docker-credential-absent", "none": "401"} {
		dockerConfig(t, fmt.Sprintf(`{"credsStore": %q}`, store))
		c, err := New(Config{HostsDirs: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Resolve(quiet(t), ref)
		wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated, want)
		wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated, "docker login")
	}
	// A registry that asks for no credential needs none.
	r.Answer = nil
	dockerConfig(t, `{"credsStore": "absent"}`)
	c, err := New(Config{HostsDirs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resolve(quiet(t), ref); err != nil {
		t.Error(err)
	}
}

func TestWithoutDockerConfig(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", filepath.Join(t.TempDir(), "absent"))
	ask, err := DockerCredentials()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask("registry.example"); err != nil || !got.Empty() {
		t.Errorf("got %v, %v, want none", got, err)
	}
	dockerConfig(t, `{"auths": "secret`)
	if _, err := DockerCredentials(); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error without the content", err)
	}
}
