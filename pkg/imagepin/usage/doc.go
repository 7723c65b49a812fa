// Package usage measures the disk space of images: of their content, and of their snapshots in each snapshotter. Images
// share layers, so it tells apart what only one image needs.
package usage
