package resolve

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"github.com/opencontainers/go-digest"
)

// nodeKeySize is the size of the node's key, in bytes.
const nodeKeySize = 32

// Prover derives proofs. A proof is a short text that means, to a holder of the node's key only, that a registry
// accepted a credential for a digest of a repository. kubelet keeps its pull records in the same way (KEP-2535).
type Prover struct {
	key []byte
}

// NewProver returns a Prover with a key of 32 bytes.
func NewProver(key []byte) (*Prover, error) {
	if len(key) != nodeKeySize {
		return nil, fmt.Errorf("the node's key has %d bytes, want %d", len(key), nodeKeySize)
	}
	return &Prover{key: key}, nil
}

// LoadProver reads the node's key from a file that only root can read. It creates a new key if the file is missing or
// has the wrong size. Proofs of another key are no longer valid, which costs one request each.
func LoadProver(path string) (*Prover, error) {
	key, err := os.ReadFile(path)
	if err == nil && len(key) == nodeKeySize {
		return NewProver(key)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the node's key: %w", err)
	}
	key = make([]byte, nodeKeySize)
	_, _ = rand.Read(key) // never fails
	if err := writeKey(path, key); err != nil {
		return nil, fmt.Errorf("create the node's key: %w", err)
	}
	return NewProver(key)
}

func writeKey(path string, key []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := atomicfile.New(path, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(key); err != nil {
		_ = f.Cancel()
		return err
	}
	return f.Close()
}

// Proof returns the proof that a registry has accepted c for a digest of a repository.
func (p *Prover) Proof(c Credential, repository string, d digest.Digest) string {
	return p.mac("proof", c.Username, c.Password, c.Auth, c.ServerAddress, c.IdentityToken, repository, d.String())
}

// Identity returns a text that distinguishes credentials without revealing them.
func (p *Prover) Identity(c Credential) string {
	return p.mac("identity", c.Username, c.Password, c.Auth, c.ServerAddress, c.IdentityToken)
}

func (p *Prover) mac(fields ...string) string {
	h := hmac.New(sha256.New, p.key)
	for _, f := range fields {
		// The length distinguishes "ab","c" from "a","bc".
		_, _ = fmt.Fprintf(h, "%d:%s", len(f), f)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
