// Package tools is for go.mod: the tests of locks run kbld and kustomize with go tool.
package tools
