// Package tools tests that skopeo, oras and imgpkg read a bundle. It runs their libraries.
package tools
