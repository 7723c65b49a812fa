package registry

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

const tokenPath = "/token"

// Auth says who may pull what.
type Auth struct {
	// Bearer makes clients fetch a token from this registry's token endpoint; without it they send Basic credentials.
	Bearer bool
	// Realm is the URL of another server's token endpoint that clients are sent to; empty means this registry's.
	Realm string
	// Public are the repositories that need no credentials, as [path.Match] patterns.
	Public []string
	// Users by name.
	Users map[string]User
	// Forbidden answers 403 to a known user without the right, instead of 401.
	Forbidden bool
}

// User is someone with credentials.
type User struct {
	Password string
	// IdentityToken is accepted as refresh token by the token endpoint; empty means the user has none.
	IdentityToken string
	// Repositories that the user may pull, as [path.Match] patterns, or "**" for all.
	Repositories []string
}

// grant is what a bearer token is good for.
type grant struct {
	user  string
	repos []string
}

// SetAuth sets who may pull what; nil lets everybody. Tokens given out before are void.
func (r *Registry) SetAuth(a *Auth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.auth = a
	r.tokens = map[string]grant{}
}

// Tokens are the bearer tokens given out since [Registry.SetAuth], for tests that look for them where they must not be.
func (r *Registry) Tokens() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.tokens))
}

// userOf says whom the Authorization header names. The lock is held.
func (r *Registry) userOf(req *http.Request) string {
	if user, _, ok := req.BasicAuth(); ok {
		return user
	}
	if token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		return r.tokens[token].user
	}
	return ""
}

// authorize lets the request pass, or answers it.
func (r *Registry) authorize(w http.ResponseWriter, req *http.Request, q Request) bool {
	r.mu.Lock()
	auth := r.auth
	grant, granted := r.tokens[strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")]
	r.mu.Unlock()
	if auth == nil {
		return true
	}
	if q.Kind == Token {
		r.serveToken(w, req, auth)
		return false
	}
	known, allowed := false, q.Repository != "" && matches(auth.Public, q.Repository)
	if user, password, ok := req.BasicAuth(); ok && !auth.Bearer {
		u, there := auth.Users[user]
		known = there && u.Password == password
		// Wrong credentials are refused for public repositories too, as real registries do.
		allowed = known && (allowed || q.Repository == "" || matches(u.Repositories, q.Repository))
	} else if auth.Bearer && granted {
		known = grant.user != ""
		allowed = q.Repository == "" || slices.Contains(grant.repos, q.Repository)
	} else if auth.Bearer {
		allowed = false // a token is needed, if only an anonymous one
	}
	if allowed {
		return true
	}
	if known && auth.Forbidden {
		refuse(w, http.StatusForbidden, "DENIED", "requested access to the resource is denied")
		return false
	}
	if auth.Bearer {
		challenge := fmt.Sprintf("Bearer realm=%q,service=%q", cmp.Or(auth.Realm, r.URL()+tokenPath), r.addr)
		if q.Repository != "" {
			challenge += fmt.Sprintf(",scope=%q", "repository:"+q.Repository+":pull")
		}
		if granted {
			challenge += `,error="insufficient_scope"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q", r.addr))
	}
	refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	return false
}

// serveToken gives out bearer tokens: GET with Basic credentials or none, POST as in OAuth 2.
func (r *Registry) serveToken(w http.ResponseWriter, req *http.Request, auth *Auth) {
	if err := req.ParseForm(); err != nil {
		refuse(w, http.StatusBadRequest, "UNSUPPORTED", err.Error())
		return
	}
	user, password, ok := req.BasicAuth()
	if req.Method == http.MethodPost {
		switch req.PostForm.Get("grant_type") {
		case "password":
			user, password, ok = req.PostForm.Get("username"), req.PostForm.Get("password"), true
		case "refresh_token":
			user, ok = "", true
			for name, u := range auth.Users {
				if u.IdentityToken != "" && u.IdentityToken == req.PostForm.Get("refresh_token") {
					user, password = name, u.Password
				}
			}
		}
	}
	g := grant{}
	rights := auth.Public
	if ok {
		u, there := auth.Users[user]
		if !there || u.Password != password {
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")
			return
		}
		g.user = user
		rights = append(slices.Clone(rights), u.Repositories...)
	}
	// Scopes come as several parameters or as one with spaces. Asking for too much gives a token for the rest.
	for _, scope := range strings.Fields(strings.Join(req.Form["scope"], " ")) {
		parts := strings.SplitN(scope, ":", 3)
		if len(parts) == 3 && parts[0] == "repository" && matches(rights, parts[1]) {
			g.repos = append(g.repos, parts[1])
		}
	}
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	token := base64.RawURLEncoding.EncodeToString(b)
	r.mu.Lock()
	r.tokens[token] = g
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300})
}

func matches(patterns []string, repository string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, repository)
		return p == "**" || (err == nil && ok)
	})
}

// refuse answers with an error as the distribution specification has it.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]any{"code": code, "message": message}}})
}
