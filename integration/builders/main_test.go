// Package builders pulls images and artifacts of other builders in the formats that they write, from two registries: buildah, podman,
// skopeo and docker-registry of Debian, oras, and go-containerregistry with its registry. What can run, runs.
package builders

import (
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
