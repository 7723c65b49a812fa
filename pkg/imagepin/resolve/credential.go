package resolve

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Credential is what a caller gives to be let in by a registry, as the CRI's
// AuthConfig has it. The zero value is no credential.
type Credential struct {
	Username      string
	Password      string
	Auth          string // base64 of username:password
	ServerAddress string // the registry it is meant for; empty means any
	IdentityToken string
}

// Empty tells whether c proves nothing to anybody.
func (c Credential) Empty() bool {
	return c.Username == "" && c.Password == "" && c.Auth == "" && c.IdentityToken == ""
}

// For gives the user name and the secret for a registry host, as containerd's
// docker resolver takes them. A credential for another server gives neither.
// The rules are those of ParseAuth in containerd's
// internal/cri/server/images/image_pull.go. Errors do not repeat the secret.
func (c Credential) For(host string) (username, secret string, _ error) {
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

// String keeps a credential out of logs that print one by accident.
func (c Credential) String() string {
	if c.Empty() {
		return "no credential"
	}
	return "a credential"
}

// GoString is String, for %#v.
func (c Credential) GoString() string { return fmt.Sprintf("resolve.Credential(%s)", c) }
