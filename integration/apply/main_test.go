// Package apply tests locks and bundles on real nodes.
package apply

import (
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
