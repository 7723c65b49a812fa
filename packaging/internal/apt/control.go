package apt

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/blakesmith/ar"
)

// maxControl is the limit for the size of a control file in bytes.
const maxControl = 1 << 20

// readControl returns the control file of a deb. Its control archive has to be compressed with gzip, as nfpm does.
func readControl(deb string) (string, error) {
	f, err := os.Open(deb)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for members := ar.NewReader(f); ; {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s has no control.tar.gz", deb)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", deb, err)
		}
		if strings.TrimSuffix(h.Name, "/") != "control.tar.gz" {
			continue
		}
		text, err := controlOf(members)
		if err != nil {
			return "", fmt.Errorf("%s: %w", deb, err)
		}
		return text, nil
	}
}

func controlOf(archive io.Reader) (string, error) {
	zr, err := gzip.NewReader(archive)
	if err != nil {
		return "", err
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("the control archive has no file control")
		}
		if err != nil {
			return "", err
		}
		if strings.TrimPrefix(h.Name, "./") != "control" {
			continue
		}
		if h.Size > maxControl {
			return "", fmt.Errorf("the control file has %d bytes, more than %d", h.Size, maxControl)
		}
		text, err := io.ReadAll(tr)
		return strings.TrimSpace(string(text)), err
	}
}

// field returns the value of a field of a control file that has one line, and "" if there is none.
func field(control, name string) string {
	for line := range strings.Lines(control) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
