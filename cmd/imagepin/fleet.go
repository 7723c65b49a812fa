//go:build unix && !no_fleet

package main

import "github.com/imagepin/imagepin/plugins/imagepin/fleet"

func init() { parts.Fleet = fleet.Open }
