// Makes a name for an address out of the title on standard input, which is JSON, and answers in JSON.
// Letters beyond ASCII are left out: the interpreter has no tables for them.
const { title } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const plain = title.toLowerCase().replace(/[^ -~]+/g, '');
const slug = plain.replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '');
console.log(JSON.stringify({ slug, shortened: slug.length < title.length }));
