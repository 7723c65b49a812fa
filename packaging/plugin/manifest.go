package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// manifest returns the manifest for krew. sums are the SHA-256 of the archives by platform. All variables of the template
// have to have a value, and all archives have to be in it.
func (b *build) manifest(sums map[string]string) ([]byte, error) {
	template, err := os.ReadFile(filepath.Join(b.root, "contrib/krew/imagepin.yaml"))
	if err != nil {
		return nil, err
	}
	values := map[string]string{
		"VERSION": b.version,
		"URL":     "https://github.com/imagepin/imagepin/releases/download/v" + b.version,
	}
	for platform, sum := range sums {
		values["SHA256_"+strings.ToUpper(strings.ReplaceAll(platform, "/", "_"))] = sum
	}
	var unknown []string
	text := os.Expand(string(template), func(name string) string {
		if values[name] == "" {
			unknown = append(unknown, name)
		}
		return values[name]
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("contrib/krew/imagepin.yaml: no value for %s", strings.Join(unknown, ", "))
	}
	for platform, sum := range sums {
		if !strings.Contains(text, sum) {
			return nil, fmt.Errorf("contrib/krew/imagepin.yaml does not have %s", platform)
		}
	}
	return []byte(text), nil
}
