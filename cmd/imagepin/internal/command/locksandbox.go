package command

import (
	"fmt"
	"strings"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/imagerefs"
	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
)

// sandboxImage returns the sandbox image that containerd's configuration sets. It fails if none is set, because the default
// depends on the version of containerd.
func sandboxImage(path string) (imagerefs.Ref, error) {
	c, err := loadConfig(path)
	if err != nil {
		return imagerefs.Ref{}, err
	}
	for _, key := range [][]string{{imagepinconfig.ImagesSection, "pinned_images", "sandbox"}, {imagepinconfig.CRISection, "sandbox_image"}} {
		var value any = c.Plugins
		for _, k := range key {
			table, _ := value.(map[string]any)
			value = table[k]
		}
		if text, ok := value.(string); ok && text != "" {
			return imagerefs.Parse(text, imagerefs.Place{File: c.fileOf(key[0], strings.Join(key[1:], ".")), Path: fmt.Sprintf("[plugins.%q] %s", key[0], strings.Join(key[1:], "."))})
		}
	}
	return imagerefs.Ref{}, imagerefs.InvalidInput(path+" sets no sandbox image, and the default depends on the version of containerd",
		"Name it with --sandbox-image: \"containerd config dump\" prints it as sandbox or sandbox_image.")
}
