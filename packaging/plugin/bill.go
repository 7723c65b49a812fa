package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/imagepin/imagepin/packaging/internal/bill"
)

// writeBill writes the bill of materials of a platform beside its archive.
func (b *build) writeBill(platform string) error {
	text, err := b.bill(platform)
	if err != nil {
		return err
	}
	file := fmt.Sprintf("%s-%s-%s.spdx.json", name, b.version, strings.ReplaceAll(platform, "/", "-"))
	return os.WriteFile(filepath.Join(b.out, file), text, 0o644)
}

// binaryBill returns the bill of materials of the binary of a platform.
func (b *build) binaryBill(platform string) ([]byte, error) {
	path := b.binary(platform)
	bom, err := bill.New(name, b.version, strings.ReplaceAll(platform, "/", "-"), b.mtime, []bill.Binary{{File: path, Path: filepath.Base(path)}})
	if err != nil {
		return nil, err
	}
	return bom.SPDX()
}
