package config

import "fmt"

// metadataSection is the section of containerd's metadata database.
const metadataSection = "io.containerd.metadata.v1.bolt"

// Metadata is the part of that section that matters for imagepin.
type Metadata struct {
	NoSync bool `toml:"no_sync"`
}

// Unsynced returns a warning if images are made durable, and containerd does not sync the database that has their records.
func (c CRI) Unsynced(own Settings) (warning string) {
	if !own.Sync || !c.Metadata.NoSync {
		return ""
	}
	return fmt.Sprintf("[plugins.%q] no_sync: images, pins and locks can be lost when the power is cut", metadataSection)
}
