//go:build unix

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// During a change, this unit exists and is enabled: it rolls the change back if the node reboots. Without CRI, no container
// could.
const (
	recoverUnit = "imagepin-install-recover.service"
	recoverFile = unitDir + "/" + recoverUnit
	recoverLink = unitDir + "/multi-user.target.wants/" + recoverUnit
	// recoverCommand is a link to the staged command, and exists as long as the unit.
	recoverCommand = previousDir + "/imagepin"
)

// recoverAtBoot creates the unit.
func recoverAtBoot() error {
	text := fmt.Sprintf(`# Written by imagepin install, and removed at the end of the change.
[Unit]
Description=Roll back an interrupted change of imagepin

[Service]
ExecStart=%s %s '{"Action":"%s"}'
Restart=on-failure
RestartSec=1

[Install]
WantedBy=multi-user.target
`, recoverCommand, ApplyCommand, recovery)
	if err := replaceFile(recoverFile, []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(recoverLink), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(recoverFile, recoverLink); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(recoverLink))
}

// doNotRecover removes the unit.
func doNotRecover() error {
	for _, path := range []string{recoverLink, recoverFile} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return removeParts(recoverFile)
}
