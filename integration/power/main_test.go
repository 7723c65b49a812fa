package power

import (
	"testing"

	"github.com/imagepin/imagepin/integration/power/disk"
)

func TestMain(m *testing.M) { disk.Main(m) }
