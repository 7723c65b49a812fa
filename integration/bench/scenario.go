package main

import (
	"context"
	"time"
)

// unit is the unit of a number.
type unit int

const (
	duration unit = iota // nanoseconds
	bytes_               // bytes
	count
)

// row is one line of the table: a number that is measured on both sides.
type row struct {
	name   string
	unit   unit
	budget budget
	// gain is set if the number is a difference, so that its ratio has no meaning.
	gain bool
	// own is set if only imagepin has the number.
	own bool
	// curve names the plot of the row, and x is the number of images.
	curve string
	x     int
}

// sample is the result of one run on one side: a number for each row of the scenario, by name. Stock's sample lacks the
// rows that only imagepin has.
type sample map[string]float64

func (s sample) took(name string, d time.Duration) { s[name] = float64(d) }

// scenario is work that both sides do in turns.
type scenario struct {
	rows []row
	// fleet is the configuration of the daemons.
	fleet fleet
	// setup prepares both sides. It is not measured.
	setup func(ctx context.Context, b *bench, p *pair) error
	// run does the work once on one side.
	run func(ctx context.Context, b *bench, s *side) (sample, error)
	// stockFails allows stock to fail. The table shows its error.
	stockFails bool
	// most is the number of repetitions at most. 0 means as many as are wanted.
	most int
	// shares are where the time of each run goes. It is nil if that is not recorded.
	shares *shares
	// course is what the daemon uses over the time of each run. It is nil if that is not recorded.
	course *course
	// apart is set if the rows are measured only if -run names one.
	apart bool
	// restarts is set if run restarts the daemon or runs only once, so that there is no CPU profile.
	restarts bool
}

// sizes are the sizes of the scenarios.
type sizes struct {
	images      []int // numbers of images on a node
	lists       []int // additional ones, only for lists
	listDays    []int // those for the lists of a day; each must be one of the others
	layerSize   int64 // bytes of each of the eight layers
	layerN      int   // files in each of them
	piece       int64 // bytes that the files of the large layer repeat, 16 times in total
	text        int64 // bytes that the files of the layer of text repeat, 80 times in total
	random      int64 // bytes of each of the six layers that do not compress
	warm        int   // calls for each sample, which is their median
	small       int   // cold pulls of a small image for each sample, which is their median
	equal       int   // concurrent pulls of one image
	different   int   // pulls of different images, four at a time
	tags        int   // tags of one digest
	list        int   // containers to list
	churn       int   // pulls and removals of the leak check
	bundles     []bundleSize
	bundleLayer int64 // bytes of each of the four layers of an image in a bundle
	bundleFiles int   // files in each of them
	pods        int   // pods that start at once
	podImages   int   // their images
	drained     int   // pods of a drain, each with its own image
	booted      int   // pods of a boot
	bootImages  int   // their images
	service     int64 // bytes of each of the four layers of an image of a pod
	locked      int   // images of a node that are all in its lock
	dirty       int64 // bytes that a neighbour has written and not synced
	references  int   // references to lock in a registry that limits requests
	// idle is how long a daemon is idle before its memory and its goroutines are measured.
	idle time.Duration
	// stuck is how long the pods of stock may take beside a registry that drips on all its connections.
	stuck time.Duration
	// exact is set if counts are checked, and not only compared.
	exact bool
}

var (
	fullSizes  = sizes{images: []int{10, 1_000, 10_000}, lists: []int{200}, listDays: []int{200, 1_000}, layerSize: 30 << 20, layerN: 3_000, piece: 60 << 20, text: 5 << 20, random: 16_000_000, warm: 50, small: 10, equal: 100, different: 50, tags: 400, list: 100, churn: 100, bundles: []bundleSize{{3, "240 MB"}, {25, "2 GB"}}, bundleLayer: 60 << 20, bundleFiles: 400, pods: 30, podImages: 10, drained: 20, booted: 110, bootImages: 40, service: 4 << 20, stuck: 15 * time.Second, locked: 2_000, dirty: 1 << 30, references: 500, idle: 2 * time.Second}
	quickSizes = sizes{images: []int{10, 100}, lists: []int{20}, listDays: []int{20, 100}, layerSize: 1 << 20, layerN: 50, piece: 1 << 20, text: 32 << 10, random: 1 << 20, warm: 5, small: 2, equal: 10, different: 8, tags: 20, list: 5, churn: 20, bundles: []bundleSize{{2, "2 small images"}}, bundleLayer: 1 << 20, bundleFiles: 10, pods: 2, podImages: 2, drained: 2, booted: 2, bootImages: 2, service: 256 << 10, stuck: 300 * time.Millisecond, locked: 60, dirty: 8 << 20, references: 20, idle: 500 * time.Millisecond, exact: true}
)
