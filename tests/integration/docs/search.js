// Types each query into the search of a built site, and prints the addresses that it finds, best
// first: one JSON list a query. `node search.js SITE QUERY...` runs the site's own worker.
"use strict";
const fs = require("fs");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = `${site}/assets/javascripts/workers/`;
const worker = fs.readdirSync(folder).find(name => /^search\..*\.js$/.test(name));
const [SETUP, QUERY] = [0, 2]; // the kinds of its messages

let handle, answer;
globalThis.self = globalThis;
globalThis.addEventListener = (_, handler) => { handle = handler; };
globalThis.postMessage = message => answer(message);
const ask = (type, data) => new Promise(resolve => { answer = resolve; handle({ data: { type, data } }); });

(async () => {
  vm.runInThisContext(fs.readFileSync(folder + worker, "utf8"));
  const index = JSON.parse(fs.readFileSync(`${site}/search/search_index.json`, "utf8"));
  await ask(SETUP, { ...index, options: { suggest: false } });
  for (const query of queries) {
    const { data } = await ask(QUERY, query);
    console.log(JSON.stringify(data.items.map(page => page[0].location)));
  }
})();
