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

// Auth defines which users may pull which repositories.
type Auth struct {
	// Bearer requires a bearer token from the token endpoint. Otherwise clients send Basic credentials.
	Bearer bool
	// Realm is the URL of another token endpoint. Empty means that of this registry.
	Realm string
	// Public are the repositories that need no credentials, as [path.Match] patterns.
	Public []string
	// Users are the users by name.
	Users map[string]User
	// Forbidden responds with status 403 instead of 401 to a known user who may not pull.
	Forbidden bool
}

// User is a user with credentials.
type User struct {
	Password string
	// IdentityToken is a refresh token for the token endpoint. Empty means that the user has none.
	IdentityToken string
	// Repositories are the repositories that the user may pull, as [path.Match] patterns, or "**" for all.
	Repositories []string
}

// grant is the access that a bearer token grants.
type grant struct {
	user  string
	repos []string
}

// SetAuth sets which users may pull which repositories. nil allows everything. All issued tokens become invalid.
func (r *Registry) SetAuth(a *Auth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.auth = a
	r.tokens = map[string]grant{}
}

// Tokens returns the bearer tokens issued since [Registry.SetAuth], for tests that search for leaked tokens.
func (r *Registry) Tokens() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.tokens))
}

// userOf returns the user in the Authorization header. The caller holds the lock.
func (r *Registry) userOf(req *http.Request) string {
	if user, _, ok := req.BasicAuth(); ok {
		return user
	}
	if token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		return r.tokens[token].user
	}
	return ""
}

// authorize reports whether a request may continue. Otherwise it has sent the response.
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
		// Wrong credentials are rejected for public repositories too, as real registries do.
		allowed = known && (allowed || q.Repository == "" || matches(u.Repositories, q.Repository))
	} else if auth.Bearer && granted {
		known = grant.user != ""
		allowed = q.Repository == "" || slices.Contains(grant.repos, q.Repository)
	} else if auth.Bearer {
		allowed = false // every request needs a token, even an anonymous one
	}
	if allowed {
		return true
	}
	if known && auth.Forbidden {
		refuse(w, http.StatusForbidden, "DENIED", "requested access to the resource is denied")
		return false
	}
	if auth.Bearer {
		challenge := fmt.Sprintf("Bearer realm=%q,service=%q", cmp.Or(auth.Realm, r.URL()+tokenPath), r.Host())
		if q.Repository != "" {
			challenge += fmt.Sprintf(",scope=%q", "repository:"+q.Repository+":pull")
		}
		if granted {
			challenge += `,error="insufficient_scope"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q", r.Host()))
	}
	refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	return false
}

// serveToken issues bearer tokens: for a GET request with or without Basic credentials, and for a POST request as in
// OAuth 2.
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
	// Scopes are several parameters, or one with spaces. The token omits scopes that are not allowed.
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

// refuse responds with an error in the format of the distribution specification.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]any{"code": code, "message": message}}})
}
