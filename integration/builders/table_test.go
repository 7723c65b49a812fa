package builders

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
)

// TestTable checks that RELEASES.md has what TestBuilders pulls.
func TestTable(t *testing.T) {
	t.Parallel()
	releases, err := os.ReadFile("../../RELEASES.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{formTable(), artifactTable()} {
		if !strings.Contains(string(releases), "\n\n"+table+"\n") {
			t.Errorf("RELEASES.md does not have this table:\n%s", table)
		}
	}
}

func formTable() string {
	kinds := []types.MediaType{types.OCIManifestSchema1, types.OCIImageIndex, types.DockerManifestSchema2, types.DockerManifestList}
	var builders []string
	cells := map[string][]string{}
	for _, f := range forms {
		layers := f.layers
		if f.also != "" {
			layers += " and " + f.also
		}
		cell := f.builder + string(f.kind)
		if cells[cell] = append(cells[cell], layers); !slices.Contains(builders, f.builder) {
			builders = append(builders, f.builder)
		}
	}
	var b strings.Builder
	b.WriteString("| builder | OCI manifest | OCI index | Docker schema 2 manifest | Docker manifest list |\n|---|---|---|---|---|\n")
	for _, builder := range builders {
		b.WriteString("| " + builder)
		for _, kind := range kinds {
			b.WriteString(" | " + cmp.Or(strings.Join(cells[builder+string(kind)], ", "), "-"))
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

func artifactTable() string {
	var b strings.Builder
	b.WriteString("| artifact | pull | as an image volume |\n|---|---|---|\n")
	for _, a := range artifacts {
		pull, volume := "works", a.volume
		switch {
		case a.pull != codes.OK:
			pull, volume = "`"+a.pull.String()+"`", "-"
		case a.refused:
			pull, volume = "`"+refused.String()+"`; with stock, it works", "with stock, it fails"
		case a.volume == mismatch:
			volume = "fails"
		}
		b.WriteString("| " + a.what + " | " + pull + " | " + volume + " |\n")
	}
	return b.String()
}
