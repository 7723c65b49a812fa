//go:build !no_fleet

package main

import _ "github.com/imagepin/imagepin/plugins/imagepin/fleet"
