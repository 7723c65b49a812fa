package registry

import (
	"context"
	"fmt"
	"sync"

	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Credentials returns the credential for a registry host, which is empty if there is none. Its errors do not contain
// secrets.
type Credentials func(host string) (resolve.Credential, error)

// maxHelperError is the maximum length, in bytes, of the error of a credential helper.
const maxHelperError = 512

// DockerCredentials returns the credentials of docker's configuration: credHelpers, credsStore and auths in
// $DOCKER_CONFIG/config.json, or ~/.docker/config.json. Credential helpers are programs named docker-credential-NAME in
// the PATH. It fails if the file exists and cannot be read.
func DockerCredentials() (Credentials, error) {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("docker's configuration: %w", err)
	}
	return func(host string) (resolve.Credential, error) {
		found, err := store.Get(context.Background(), credentials.ServerAddressFromHostname(host))
		if err != nil {
			return resolve.Credential{}, fmt.Errorf("credential for %s in docker's configuration: %s", host, imagepin.Bound(err.Error(), maxHelperError))
		}
		// A registry token (AccessToken) is not supported by containerd's resolver.
		return resolve.Credential{Username: found.Username, Password: found.Password, IdentityToken: found.RefreshToken}, nil
	}, nil
}

// once asks for the credential of each host once: a credential helper can take seconds, or ask the user.
func once(ask Credentials) Credentials {
	var (
		mu    sync.Mutex
		known = make(map[string]func() (resolve.Credential, error))
	)
	return func(host string) (resolve.Credential, error) {
		mu.Lock()
		f, ok := known[host]
		if !ok {
			f = sync.OnceValues(func() (resolve.Credential, error) { return ask(host) })
			known[host] = f
		}
		mu.Unlock()
		return f()
	}
}
