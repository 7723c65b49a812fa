package power

import (
	"testing"

	"github.com/imagepin/imagepin/integration/power/disk"
)

func TestMain(m *testing.M) {
	runWithoutSyncfs()
	disk.Main(m)
}
