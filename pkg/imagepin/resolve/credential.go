package resolve

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Credential is a caller's credential for a registry, with the fields of the CRI's AuthConfig. The zero value means no
// credential.
type Credential struct {
	Username      string
	Password      string
	Auth          string // base64 of username:password
	ServerAddress string // the registry that it is for; empty means any
	IdentityToken string
}

// Empty reports whether c has neither a user nor a secret.
func (c Credential) Empty() bool {
	return c.Username == "" && c.Password == "" && c.Auth == "" && c.IdentityToken == ""
}

// forHost returns the user name and the secret for a registry host, in the form of containerd's docker resolver. Both are
// empty if c is for another server. The rules are those of containerd's CRI (see package
// upstream). Errors do not contain the secret.
func (c Credential) forHost(host string) (username, secret string, _ error) {
	if c.ServerAddress != "" {
		address := c.ServerAddress
		if !strings.Contains(address, "://") {
			address = "https://" + address
		}
		u, err := url.Parse(address)
		if err != nil {
			return "", "", errors.New("the credential's server address is not a URL")
		}
		if u.Host != host {
			return "", "", nil
		}
	}
	switch {
	case c.Username != "":
		return c.Username, c.Password, nil
	case c.IdentityToken != "":
		return "", c.IdentityToken, nil
	case c.Auth != "":
		return decodeAuth(c.Auth)
	}
	return "", "", nil
}

func decodeAuth(auth string) (username, password string, _ error) {
	b, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", "", errors.New("the credential's auth is not base64")
	}
	username, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return "", "", errors.New("the credential's auth is not base64 of user:password")
	}
	return username, strings.Trim(password, "\x00"), nil
}

// String does not return the secret, so that a log cannot leak it.
func (c Credential) String() string {
	if c.Empty() {
		return "no credential"
	}
	return "a credential"
}

// GoString is String for the verb %#v.
func (c Credential) GoString() string { return fmt.Sprintf("resolve.Credential(%s)", c) }
