package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/integration/offline"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) {
	if !isNeighbour() {
		testkit.Main(m)
	}
}

// TestVerdict checks the verdicts for budgets. They compare samples of the same repetition.
func TestVerdict(t *testing.T) {
	drifting := result{stock: []float64{100, 200, 400}, ours: []float64{50, 100, 240}} // ratios 0.5, 0.5, 0.6; differences -50, -100, -160
	for name, tc := range map[string]struct {
		r    result
		b    budget
		want string
	}{
		"ratio kept":         {drifting, ratio(0.5), "ok"},
		"ratio missed":       {drifting, ratio(0.49), "missed"},
		"difference kept":    {drifting, more(-100), "ok"},
		"difference missed":  {drifting, more(-101), "missed"},
		"absolute kept":      {drifting, atMost(100), "ok"},
		"absolute missed":    {drifting, atMost(99), "missed"},
		"no budget":          {drifting, budget{}, ""},
		"no stock samples":   {result{ours: []float64{1}}, ratio(1), ""},
		"absolute, no stock": {result{ours: []float64{1}}, atMost(1), "ok"},
		"nothing measured":   {result{}, atMost(1), ""},
		"zero on both":       {result{stock: []float64{0}, ours: []float64{0}}, ratio(1), "ok"},
		"zero on stock":      {result{stock: []float64{0}, ours: []float64{1}}, ratio(1), "missed"},
		"zero on imagepin":   {result{stock: []float64{1}, ours: []float64{0}}, ratio(0.05), "ok"},
	} {
		tc.r.row.budget = tc.b
		if got := tc.r.verdict(); got != tc.want {
			t.Errorf("%s: got verdict %q, want %q", name, got, tc.want)
		}
	}
}

func sampleResults() []*result {
	curve := func(x int, stock, ours float64) *result {
		return &result{row: row{name: at("ListImages", x), curve: "ListImages", x: x, budget: only(x, ratio(0.5))}, stock: []float64{stock * 1e6}, ours: []float64{ours * 1e6, ours * 2e6}}
	}
	return []*result{
		curve(10, 0.25, 0.2), curve(1_000, 20, 8),
		{row: row{name: "Version", budget: more(150e3)}, stock: []float64{100e3}, ours: []float64{190e3}},
		{row: row{name: "second"}, ours: []float64{2e9}, fails: errors.New("no\n  luck")},
		{row: row{name: "third", unit: count, budget: atMost(0)}, ours: []float64{1}, fails: errors.New("no luck")},
		{row: row{name: "memory gained", unit: bytes_, gain: true}, stock: []float64{-1e6}, ours: []float64{2.5e6}},
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := table(&out, sampleResults()); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
metric                        stock  imagepin               ratio (min–max)      budget
ListImages, 10 images       0.25 ms   0.30 ms              0.80 (0.80–0.80)
ListImages, 1,000 images    20.0 ms   12.0 ms              0.40 (0.40–0.40)    ≤ 0.50 ×  ok
Version                     0.10 ms   0.19 ms  +0.09 ms (+0.09 ms–+0.09 ms)  ≤ +0.15 ms  ok
second                    fails [1]    2.00 s
third                     fails [1]         1                                       ≤ 0  missed
memory gained               -1.0 MB    2.5 MB
[1] no luck
`, "\n")
	if got := out.String(); got != want {
		t.Errorf("got the table\n%s\nwant\n%s", got, want)
	}
}

func TestPlots(t *testing.T) {
	all, err := drawAll(sampleResults(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range map[string][]string{
		"listimages.svg": {"ListImages", "1,000", "10.0 ms", "imagepin", "stock"},
		summaryFile:      {">ListImages, 1,000 images<", ">20.0 ms<", ">12.0 ms<", ">0.40<", "prefers-color-scheme:dark"},
		chartFile:        {"Lists and status", ">ListImages, 10 images<", ">0.80<", ">ListImages, 1,000 images<", ">0.40<", "1.00"},
	} {
		svg := all[name]
		wellFormed(t, svg)
		for _, s := range texts {
			if !bytes.Contains(svg, []byte(s)) {
				t.Errorf("%s lacks %q:\n%s", name, s, svg)
			}
		}
		if bytes.Contains(svg, []byte("Version")) {
			t.Errorf("%s has a row without a ratio:\n%s", name, svg)
		}
	}
	if len(all) != 3 {
		t.Errorf("got %d plots, want 3", len(all))
	}
}

// recorded returns the bars of docs/performance.
func recorded(t *testing.T) []ratioBar {
	t.Helper()
	b, err := os.ReadFile("../../docs/performance/results.json")
	if err != nil {
		t.Fatal(err)
	}
	bars, err := recordedBars(b)
	if err != nil {
		t.Fatal(err)
	}
	return bars
}

// TestChartsAreOfTheResults checks that the charts of docs/performance are those of its raw numbers, and that their texts fit.
func TestChartsAreOfTheResults(t *testing.T) {
	bars := recorded(t)
	for name, want := range drawCharts(bars) {
		got, err := os.ReadFile(filepath.Join("../../docs/performance", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("docs/performance/%s is not up to date: run `bin/bench -out docs/performance -doc docs/performance.md`", name)
		}
		wellFormed(t, want)
	}
	if got := len(summarized(bars)); got != len(summary) || got != 15 {
		t.Errorf("the summary has %d bars, want %d", got, len(summary))
	}
	var parts []part
	n := 0
	for _, s := range subjects {
		parts = append(parts, part{s.name, s.rows(bars)})
		n += len(s.rows(bars))
	}
	if n != len(bars) {
		t.Errorf("the chart has %d of %d ratios", n, len(bars))
	}
	for _, m := range append(ratioChart(parts).Misplaced(), ratioChart([]part{{bars: summarized(bars)}}).Misplaced()...) {
		t.Error(m)
	}
}

// TestEveryRowHasASubject checks the names of all rows, also of those that the results do not have.
func TestEveryRowHasASubject(t *testing.T) {
	var names []string
	for _, s := range scenarios(fullSizes) {
		for _, r := range s.rows {
			names = append(names, r.name)
			if !slices.ContainsFunc(subjects, func(o subject) bool { return o.has(r.name) }) {
				t.Errorf("%s has no subject", r.name)
			}
		}
	}
	for _, name := range summary {
		if !slices.Contains(names, name) {
			t.Errorf("no scenario has the row %s", name)
		}
	}
}

// TestBarsOutsideOfTheAxis checks that a bar that leaves the axis has an arrow, and others have none.
func TestBarsOutsideOfTheAxis(t *testing.T) {
	for ratio, arrow := range map[float64]bool{0: true, 0.04: true, 0.05: false, 1: false, 2: false, 5.8: true} {
		chart := string(drawRatios("x", []part{{bars: []ratioBar{{"row", "1", "2", spread{ratio, ratio, ratio}}}}}))
		if got := strings.Contains(chart, "z\"/>"); got != arrow {
			t.Errorf("ratio %v: arrow %t, want %t", ratio, got, arrow)
		}
	}
}

func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the plot is not well-formed XML: %v\n%s", err, svg)
		}
	}
}

// TestDocumentHasTheTables checks that docs/performance.md and docs/performance/ have the same tables.
func TestDocumentHasTheTables(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	doc := filepath.Join(docs, "performance.md")
	before, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	pasted := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(pasted, before, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := paste(pasted, filepath.Join(docs, "performance")); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(pasted)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("docs/performance.md does not have the tables of docs/performance: run `make bench-docs`")
	}
}

// TestQuick checks that -quick measures each row on both sides. It checks counts of requests, of transactions of
// containerd's metadata database, and of allocations, but no durations.
func TestQuick(t *testing.T) {
	dir := t.TempDir()
	var list, out, progress bytes.Buffer
	if err := command(testkit.Context(t), []string{"-quick", "-list"}, &list, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := command(testkit.Context(t), []string{"-quick", "-out", dir}, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	text, err := os.ReadFile(filepath.Join(dir, tableFile))
	if err != nil {
		t.Fatal(err)
	}
	where, err := os.ReadFile(filepath.Join(dir, sharesFile))
	if err != nil {
		t.Fatal(err)
	}
	if written := string(text) + "\n" + string(where); written != out.String() {
		t.Errorf("printed tables:\n%s\nwritten tables:\n%s", out.String(), written)
	}
	var raw struct {
		Rows    []rawRow
		Shares  []rawShares
		Courses []rawCourse
	}
	b, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err == nil {
		err = json.Unmarshal(b, &raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, s := range scenarios(quickSizes) {
		for _, r := range s.rows {
			own[r.name] = r.own
		}
	}
	measured := map[string]rawRow{}
	for _, r := range raw.Rows {
		measured[r.Metric] = r
	}
	for name := range strings.Lines(list.String()) {
		name = strings.TrimSuffix(name, "\n")
		r := measured[name]
		if len(r.Ours) == 0 || len(r.Stock) == 0 && r.Fails == "" && !own[name] {
			t.Errorf("%s is not measured: %+v", name, r)
		}
		if !strings.Contains(out.String(), name) {
			t.Errorf("%s is not in the table", name)
		}
		// Times and memory are not 0, except CPU time, which is counted in hundredths of a second.
		for _, v := range r.Ours {
			if r.Unit != "count" && v <= 0 && !strings.Contains(name, "CPU") && !strings.Contains(name, "gained") || math.IsNaN(v) {
				t.Errorf("%s: invalid samples %v", name, r.Ours)
			}
		}
	}
	svgs, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(svgs) < 8 {
		t.Errorf("got plots %v, %v, want at least 8", svgs, err)
	}
	for _, path := range svgs {
		svg, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, svg)
	}
	checkCounts(t, measured)
	checkShares(t, raw.Shares, string(where))
	checkCourses(t, raw.Courses)
}

// checkShares checks that all large cold pulls have their shares, and no others.
func checkShares(t *testing.T, all []rawShares, table string) {
	t.Helper()
	var got []string
	for _, s := range all {
		name := strings.TrimPrefix(s.Metric, coldPrefix)
		got = append(got, name)
		for side, turns := range map[string][]turn{"stock": s.Stock, "imagepin": s.Ours} {
			// Processor times are counted in hundredths of a second, and can be 0.
			if len(turns) != 1 || turns[0].Wall <= 0 || turns[0].Registry <= 0 {
				t.Errorf("%s, %s: got %+v", name, side, turns)
			}
			if !strings.Contains(table, name+": "+side+" ") {
				t.Errorf("the table of shares lacks %s, %s", name, side)
			}
		}
		if limited := strings.Contains(name, "MiB/s"); s.Image.Stock <= 0 || s.Image.Ours <= 0 || limited != (s.Image.Download > 0) {
			t.Errorf("%s: got %+v", name, s.Image)
		}
	}
	var want []string
	for _, s := range coldPulls(quickSizes) {
		if s.shares != nil {
			want = append(want, strings.TrimPrefix(s.rows[0].name, coldPrefix))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 6 {
		t.Errorf("got shares of %q, want %q", got, want)
	}
}

// exactCounts are the counts of imagepin that are always the same.
var exactCounts = map[string]float64{
	"cold pull, small image: requests":                                        5, // HEAD, index, manifest, config, layer
	"cold pull, 8 small layers: requests":                                     12,
	"cold pull, 40 layers: requests":                                          44,
	"cold pull, one small layer of large files: requests":                     5,
	"cold pull, one small layer of large files, 60 MiB/s: requests":           5,
	"cold pull, 8 small layers, both parallel: requests":                      12,
	"cold pull, 40 layers, both parallel: requests":                           44,
	"cold pull, 8 small layers, EROFS: requests":                              12,
	"cold pull, 8 small layers, EROFS tar index: requests":                    12,
	"cold pull, 8 small layers, stock's defaults beside EROFS: requests":      12,
	"cold pull, one small layer of text: requests":                            5,
	"cold pull, 6 small layers that do not compress: requests":                10,
	"warm pull, default: requests":                                            1,
	"warm pull, always: requests":                                             1,
	"warm pull, pinned: requests":                                             1,
	"warm pull, by digest: requests":                                          0,
	"warm pull, default: metadata transactions":                               0,
	"warm pull, always: metadata transactions":                                0,
	"warm pull, pinned: metadata transactions":                                0,
	"warm pull, by digest: metadata transactions":                             0,
	"second snapshotter, layers kept: content requests":                       0,
	"second snapshotter, layers discarded: content requests":                  4,
	"10 pulls of one image: HEADs":                                            1,
	"lock of 20 references, at most 100 requests a second: requests for each": 2, // HEAD, index
	"10 pulls of one image: GETs":                                             6,
	// A configuration and four layers for each image.
	"drain, 2 pods of 2 images: requests for blobs":                                   10,
	"scale-up, 2 pods of 2 images: requests for blobs":                                10,
	"scale-up, 2 pods of 2 images, a registry drips one layer: requests for blobs":    10,
	"scale-up, 2 pods of 2 images, a registry drips eight layers: requests for blobs": 10,
	"boot, 2 pods of 2 images: requests":                                              1, // HEAD of the pod with the policy Always
}

// checkCounts checks counts that do not depend on speed.
func checkCounts(t *testing.T, measured map[string]rawRow) {
	t.Helper()
	for name, want := range exactCounts {
		got := measured[name].Ours
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	for name, r := range measured {
		_, what, _ := strings.Cut(name, ": ")
		switch what {
		case "requests", "requests for blobs", "content requests", "HEADs", "GETs", "metadata transactions", "allocations":
			if r.Verdict == "missed" {
				t.Errorf("%s: got %v, with stock %v, budget %s", name, r.Ours, r.Stock, r.Budget)
			}
		}
	}
}

// TestProfile checks that -cpuprofile writes a CPU profile.
func TestProfile(t *testing.T) {
	dir := t.TempDir()
	if err := command(testkit.Context(t), []string{"-quick", "-run", "^Version$", "-cpuprofile", dir}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(dir, "version.pprof"))
	if err != nil || fi.Size() == 0 {
		t.Errorf("got profile %v, %v, want a file that is not empty", fi, err)
	}
}

// TestSyntheticImages checks that containerd's own stores read the synthetic images.
func TestSyntheticImages(t *testing.T) {
	const n = 30
	r, err := offline.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := fill(t.Context(), r, n); err != nil {
		t.Fatal(err)
	}
	if err := damage(t.Context(), r, 3); err != nil {
		t.Fatal(err)
	}
	missing := 0
	if err := r.AtOnce(t.Context(), func(ctx context.Context) error {
		all, err := r.Images.List(ctx)
		if err != nil {
			return err
		}
		if len(all) != 3*n {
			t.Errorf("got %d records, want three for each of %d images", len(all), n)
		}
		for i := range n {
			img, err := newSynthetic(i)
			if err != nil {
				return err
			}
			if _, err := r.Snapshots.Stat(ctx, offline.ChainID(img.diffIDs)); err != nil {
				missing++
			}
			ok, _, _, absent, err := ctdimages.Check(ctx, r.Content, img.target, platforms.Default())
			if err != nil || !ok {
				t.Errorf("%s lacks %v: %v", img.ref, absent, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if missing != 3 {
		t.Errorf("%d snapshots are missing, want 3", missing)
	}
}
