// Package cluster has the manifests that a cluster needs for ImagePins.
package cluster

import "embed"

// Manifests are the files of this directory.
//
//go:embed *.yaml
var Manifests embed.FS
