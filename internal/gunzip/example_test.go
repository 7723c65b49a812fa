package gunzip_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/imagepin/imagepin/internal/gunzip"
)

func ExampleNewReader() {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := io.WriteString(w, "a layer"); err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}
	r, err := gunzip.NewReader(&compressed)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := io.ReadAll(r)
	fmt.Printf("%s %v\n", text, err)
	// Output:
	// a layer <nil>
}
