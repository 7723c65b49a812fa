// Package running compares the images that containers run with the pins of their references.
package running
