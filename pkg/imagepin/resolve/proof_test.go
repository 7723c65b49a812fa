package resolve

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestProofs(t *testing.T) {
	node := map[string]Credential{"registry.example": {Username: "node", Password: "1"}}
	r := withConfig(t, RegistryConfig{Auths: node})
	d, other := digest.FromString("a"), digest.FromString("b")
	c := Credential{Username: "u", Password: secret}
	app := named(t, "registry.example/team/app:1")
	own, anonymous := r.Proof(app, c, d), r.Proof(app, Credential{}, d)

	accepts := func(r *Resolver, repository string, c Credential, d digest.Digest, proof string) bool {
		return slices.Contains(r.Proofs(named(t, repository), c, d), proof)
	}
	rotated := withConfig(t, RegistryConfig{Auths: map[string]Credential{"registry.example": {Username: "node", Password: "2"}}})
	without := withConfig(t, RegistryConfig{})
	otherKey := withConfig(t, RegistryConfig{Auths: node})
	otherKey.config.Prover = &Prover{key: bytes.Repeat([]byte{1}, nodeKeySize)}
	for name, x := range map[string]struct{ got, want bool }{
		"own":                                  {accepts(r, ref, c, d, own), true},
		"own, another tag":                     {accepts(r, "registry.example/team/app:2", c, d, own), true},
		"own, another repository":              {accepts(r, "registry.example/team/evil:1", c, d, own), false},
		"own, another registry":                {accepts(r, "evil.example/team/app:1", c, d, own), false},
		"own, another digest":                  {accepts(r, ref, c, other, own), false},
		"another credential":                   {accepts(r, ref, Credential{Username: "u", Password: "guess"}, d, own), false},
		"fields shifted":                       {accepts(r, ref, Credential{Username: "u" + secret}, d, own), false},
		"own, caller without credential":       {accepts(r, ref, Credential{}, d, own), false},
		"anonymous, caller without credential": {accepts(r, ref, Credential{}, d, anonymous), true},
		"anonymous, any caller":                {accepts(r, ref, c, d, anonymous), true},
		"anonymous, another repository":        {accepts(r, "registry.example/x:1", c, d, anonymous), false},
		"anonymous, node credential rotated":   {accepts(rotated, ref, Credential{}, d, anonymous), false},
		"anonymous, node credential removed":   {accepts(without, ref, Credential{}, d, anonymous), false},
		"own, node credential rotated":         {accepts(rotated, ref, c, d, own), true},
		"own, another node's key":              {accepts(otherKey, ref, c, d, own), false},
	} {
		if x.got != x.want {
			t.Errorf("%s: got accepted %v, want %v", name, x.got, x.want)
		}
	}

	if own == anonymous || strings.Contains(own, secret) || len(own) > 40 {
		t.Errorf("unexpected proofs %s, %s", own, anonymous)
	}
	if r.config.Prover.Identity(c) == r.config.Prover.Identity(Credential{}) || r.config.Prover.Identity(c) == own {
		t.Error("different credentials have the same identity")
	}
	// A caller that sends the combined credentials of the node as its own auth does not get the proof of callers
	// without a credential.
	if accepts(r, ref, r.anonymous, other, anonymous) {
		t.Error("accepted the proof for another digest")
	}
}

func TestLoadProver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin", "node.key")
	load := func() string {
		t.Helper()
		p, err := LoadProver(path)
		if err != nil {
			t.Fatal(err)
		}
		return p.Identity(Credential{})
	}
	first := load()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Size() != nodeKeySize {
		t.Errorf("%s: got mode %v, %d bytes, want 0600, %d", path, info.Mode(), info.Size(), nodeKeySize)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("directory: got %v, %v, want mode 0700", dir, err)
	}
	if load() != first {
		t.Error("the second load returns another key")
	}
	for _, damaged := range [][]byte{nil, []byte("short"), make([]byte, nodeKeySize+1)} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		made := load()
		if made == first || load() != made {
			t.Errorf("key of %d bytes: did not create a new key", len(damaged))
		}
	}

	if _, err := LoadProver(filepath.Dir(path)); err == nil {
		t.Error("a directory: got no error")
	}
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadProver(filepath.Join(path, "below", "a-file")); err == nil {
		t.Error("a key that cannot be stored: got no error")
	}
	if _, err := NewProver([]byte("short")); err == nil {
		t.Error("a short key: got no error")
	}
}
