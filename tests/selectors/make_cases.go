// Prints the cases of cases.json: selectors, and what Kubernetes' own parser selects with them.
//
//	go mod init cases && go get k8s.io/apimachinery@v0.31.0 && go run make_cases.go > cases.json
package main

import (
	"encoding/json"
	"math/rand"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// The nodes: each case has a digit for each of them.
var nodes = []map[string]string{
	{},
	{"rack": "r1"},
	{"rack": "r2", "pool": "gpu"},
	{"rack": "", "pool": "cpu"},
	{"rack": "R1", "zone": "a"},
	{"in": "notin", "notin": "in"},
	{"example.com/rack": "r1", "rack": "r3"},
	{"a": "", "b": "b", "rack": "r1"},
	{"pool": "in", "zone": "r1.x_y-z"},
	{"topology.kubernetes.io/zone": "a", "zone": "b", "pool": "gpu"},
}

var long = strings.Repeat("x", 63)
var words = []string{
	"rack", "rack", "rack", "pool", "pool", "zone", "a", "b", "r1", "r1", "r2", "R1", "gpu", "cpu", "in", "notin",
	"example.com/rack", "topology.kubernetes.io/zone", "r1.x_y-z", "-a", "a-", "a.", "_", "a/b/c", "/a", "a/", "A.b/c",
	"a..b/c", "a_b/c", long, long + "x", long + "." + long + "/" + long, strings.Repeat("a.", 126) + "a/n",
	strings.Repeat("a.", 127) + "a/n", "é", "a%b", "Exists", "0", "00",
}
var soup = []string{"=", "==", "!=", "!", "(", ")", ",", ",", " ", " ", "\t", " in ", " notin ", " in (", ")", "\n", "\r"}

func word() string  { return words[rand.Intn(len(words))] }
func usual() string { return words[rand.Intn(16)] }
func key() string {
	if rand.Intn(15) == 0 {
		return word()
	}
	return words[[]int{0, 3, 5, 6, 14, 15, 16}[rand.Intn(7)]]
}
func space() string { return []string{"", "", "", " ", "  ", "\t", "\n"}[rand.Intn(7)] }

func values() string {
	var parts []string
	for range rand.Intn(5) {
		parts = append(parts, space()+[]string{usual(), usual(), usual(), "", word()}[rand.Intn(5)]+space())
	}
	return "(" + strings.Join(parts, ",") + ")"
}

func requirement() string {
	key := key()
	switch rand.Intn(9) {
	case 0:
		return key
	case 1:
		return "!" + space() + key
	case 2:
		return key + space() + "=" + space() + usual()
	case 3:
		return key + space() + "==" + space() + usual()
	case 4:
		return key + space() + "!=" + space() + usual()
	case 5:
		return key + " in" + space() + values()
	case 6:
		return key + " notin" + space() + values()
	case 7:
		return key + space() + []string{"=", "!="}[rand.Intn(2)] + space() + word()
	default:
		return key + []string{"=", "==", "!="}[rand.Intn(3)]
	}
}

func selector() string {
	var text strings.Builder
	if rand.Intn(4) == 0 {
		for range rand.Intn(9) {
			if rand.Intn(2) == 0 {
				text.WriteString(word())
			} else {
				text.WriteString(soup[rand.Intn(len(soup))])
			}
		}
		return text.String()
	}
	var parts []string
	for range 1 + rand.Intn(3) {
		parts = append(parts, requirement())
	}
	return space() + strings.Join(parts, space()+","+space()) + space()
}

func selected(text string) any {
	parsed, err := labels.Parse(text)
	if err != nil {
		return nil
	}
	digits := ""
	for _, node := range nodes {
		if parsed.Matches(labels.Set(node)) {
			digits += "1"
		} else {
			digits += "0"
		}
	}
	return digits
}

func main() {
	cases, seen := [][]any{}, map[string]bool{}
	for len(cases) < 2500 {
		if text := selector(); !seen[text] {
			seen[text] = true
			cases = append(cases, []any{text, selected(text)})
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	os.Stdout.WriteString("{\"nodes\": ")
	_ = out.Encode(nodes)
	os.Stdout.WriteString(",\"cases\": [\n")
	for i, each := range cases {
		if i > 0 {
			os.Stdout.WriteString(",")
		}
		_ = out.Encode(each)
	}
	os.Stdout.WriteString("]}\n")
}
