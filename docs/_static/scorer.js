/* Order of search results: index entries and pages first, then Python objects, then records of changes and of measurements. */
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    if (/CHANGELOG|references$|benchmarks|reproductions|_studies/.test(docname)) return score - 20;
    return /\/(tutorials|how_to)\//.test(docname) ? score + 6 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 2,
  objPrio: { 0: 5, 1: 2, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
