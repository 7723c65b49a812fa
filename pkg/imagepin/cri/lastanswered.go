package cri

import (
	"container/list"
	"sync"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxAnswered is how many names are cached. It is more than a large node's images have.
const maxAnswered = 16384

// lastAnswered caches the entry that each name was last answered with, for a call for a pod. Only calls that are not for
// a pod use it, such as kubelet's lookup of the image's user: the pin of another workload can have decided the entry. The
// least recently used names are evicted first. The zero value is ready to use.
type lastAnswered struct {
	mu     sync.Mutex
	byName map[string]*list.Element
	recent list.List // of answer, most recently used first
}

type answer struct {
	name  string
	entry imagepin.Entry
	// tagged is true if the name had a record.
	tagged bool
}

// set records the last answer for a name. tagged reports whether the name has a record.
func (l *lastAnswered) set(name string, e imagepin.Entry, tagged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byName[name]; known != nil {
		known.Value = answer{name, e, tagged}
		l.recent.MoveToFront(known)
		return
	}
	if l.byName == nil {
		l.byName = make(map[string]*list.Element)
	}
	l.byName[name] = l.recent.PushFront(answer{name, e, tagged})
	if l.recent.Len() > maxAnswered {
		l.drop(l.recent.Back())
	}
}

// get returns the last answer for a name. The image may no longer be on the node.
func (l *lastAnswered) get(name string) (_ answer, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.byName[name]
	if known == nil {
		return answer{}, false
	}
	l.recent.MoveToFront(known)
	return known.Value.(answer), true
}

// forget removes the answers for names.
func (l *lastAnswered) forget(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if known := l.byName[name]; known != nil {
			l.drop(known)
		}
	}
}

func (l *lastAnswered) drop(known *list.Element) {
	delete(l.byName, known.Value.(answer).name)
	l.recent.Remove(known)
}
