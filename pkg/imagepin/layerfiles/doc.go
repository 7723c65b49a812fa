// Package layerfiles compares the files of snapshots with what the layers of their image say.
//
// A power cut can leave a committed snapshot whose files have their names and modes, and no content: containerd records a
// snapshot before the disk has its files. Neither the records nor the directories of snapshots show that.
//
// A [Tree] is what a directory has to contain. [Tree.Apply] makes it from the tar streams of layers, by the rules of
// containerd's archive.Apply: what that ignores, replaces and rejects. [Tree.Compare] compares a directory with it.
package layerfiles
