package resolve

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

const secret = "hush-hush"

func basic(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// TestCredentialFor has the cases of ParseAuth in containerd's internal/cri/server/images/image_pull_test.go, and more.
func TestCredentialFor(t *testing.T) {
	for name, c := range map[string]struct {
		credential   Credential
		host         string
		user, secret string
		fails        bool
	}{
		"none":                           {Credential{}, "h", "", "", false},
		"user and password":              {Credential{Username: "u", Password: secret}, "h", "u", secret, false},
		"user without password":          {Credential{Username: "u"}, "h", "u", "", false},
		"password without user":          {Credential{Password: secret}, "h", "", "", false},
		"identity token":                 {Credential{IdentityToken: secret}, "h", "", secret, false},
		"auth":                           {Credential{Auth: basic("u:" + secret)}, "h", "u", secret, false},
		"auth, password with colons":     {Credential{Auth: basic("u:a:b:")}, "h", "u", "a:b:", false},
		"auth, padded with zeros":        {Credential{Auth: basic("u:" + secret + "\x00\x00")}, "h", "u", secret, false},
		"auth without colon":             {Credential{Auth: basic(secret)}, "h", "", "", true},
		"auth is not base64":             {Credential{Auth: secret + "!"}, "h", "", "", true},
		"auth base64 without padding":    {Credential{Auth: strings.TrimRight(basic("u:"+secret), "=")}, "h", "", "", true},
		"user overrides token and auth":  {Credential{Username: "u", Password: secret, IdentityToken: "t", Auth: basic("x:y")}, "h", "u", secret, false},
		"token overrides auth":           {Credential{IdentityToken: secret, Auth: basic("x:y")}, "h", "", secret, false},
		"server":                         {Credential{Username: "u", Password: secret, ServerAddress: "https://registry.example"}, "registry.example", "u", secret, false},
		"server with path":               {Credential{Username: "u", Password: secret, ServerAddress: "https://registry.example/v1/"}, "registry.example", "u", secret, false},
		"server with port":               {Credential{Username: "u", Password: secret, ServerAddress: "http://registry.example:5000"}, "registry.example:5000", "u", secret, false},
		"server without scheme":          {Credential{Username: "u", Password: secret, ServerAddress: "registry.example:5000"}, "registry.example:5000", "u", secret, false},
		"another server":                 {Credential{Username: "u", Password: secret, ServerAddress: "https://registry.example"}, "evil.example", "", "", false},
		"another server, without scheme": {Credential{Username: "u", Password: secret, ServerAddress: "registry.example"}, "evil.example", "", "", false},
		"another port":                   {Credential{Username: "u", Password: secret, ServerAddress: "registry.example:1"}, "registry.example:2", "", "", false},
		"server name as prefix":          {Credential{Username: "u", Password: secret, ServerAddress: "registry.example"}, "registry.example.evil", "", "", false},
		"server in user information":     {Credential{Username: "u", Password: secret, ServerAddress: "https://evil.example@registry.example"}, "evil.example", "", "", false},
		"server is not a URL":            {Credential{Username: "u", Password: secret, ServerAddress: "https://u:" + secret + "@%zz"}, "h", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			user, got, err := c.credential.forHost(c.host)
			if (err != nil) != c.fails || user != c.user || got != c.secret {
				t.Errorf("got %q, %q, %v, want %q, %q", user, got, err, c.user, c.secret)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the secret: %v", err)
			}
		})
	}
}

func TestCredentialIsNotPrinted(t *testing.T) {
	c := Credential{Username: secret, Password: secret, Auth: secret, ServerAddress: secret, IdentityToken: secret}
	type request struct{ C Credential }
	for _, v := range []any{c, &c, request{c}, []Credential{c}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, secret) {
				t.Errorf("%s of a %T contains the secret: %s", verb, v, text)
			}
		}
	}
	if (Credential{}).String() == c.String() {
		t.Error("a credential and an empty credential have the same text")
	}
	if !(Credential{ServerAddress: "h"}).Empty() || (Credential{IdentityToken: "t"}).Empty() {
		t.Error("Empty is wrong")
	}
}
