/**
 * Search over the guide, in the browser: a combobox with a list of sections (WAI-ARIA Authoring Practices, combobox with list
 * autocomplete). The index comes with the first key. `/` leads to it, arrows move, Enter opens, Escape closes.
 */
const FOUND_MAX = 12
const SNIPPET_LENGTH = 150

const box = document.querySelector('.search')
const input = element('input', {
  type: 'search',
  placeholder: 'Search the guide',
  autocomplete: 'off',
  spellcheck: 'false',
  role: 'combobox',
  'aria-label': 'Search the guide',
  'aria-expanded': 'false',
  'aria-controls': 'found',
  'aria-autocomplete': 'list',
})
const list = element('ul', { id: 'found', role: 'listbox', 'aria-label': 'Found sections', hidden: '' })
const said = element('p', { role: 'status', class: 'said' })
box.append(input, list, said)

let index
let chosen = -1

input.addEventListener('input', () => void search())
input.addEventListener('focus', () => void (input.value && search()))
input.addEventListener('keydown', (event) => {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    event.preventDefault()
    choose(chosen + (event.key === 'ArrowDown' ? 1 : -1))
  } else if (event.key === 'Enter') list.children[Math.max(chosen, 0)]?.firstChild.click()
  else if (event.key === 'Escape') close()
})
box.addEventListener('focusout', ({ relatedTarget }) => void (box.contains(relatedTarget) || close()))
document.addEventListener('keydown', (event) => {
  const isTyping = event.target.closest('input, textarea, [contenteditable]')
  if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey) return
  event.preventDefault()
  input.focus()
})

async function search() {
  const words = wordsOf(input.value)
  if (words.length === 0) return close()
  index ??= fetch('/docs/guide/search.json').then((answer) =>
    answer.ok ? answer.json() : Promise.reject(answer.status),
  )
  const sections = await index.catch(() => undefined)
  if (!sections) {
    index = undefined
    said.textContent = 'The index could not be read. Try again.'
    return
  }
  // Somebody may have typed on meanwhile: their words are searched by a later call.
  if (wordsOf(input.value).join(' ') !== words.join(' ')) return
  show(find(sections, words), words)
}

/** Sections that have every word, at the beginning of one of theirs; a word of a heading counts more than any of the text. */
function find(sections, words) {
  const found = sections.flatMap((section) => {
    const counts = words.map((word) => {
      const begins = new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}`, 'giu')
      const count = (text) => text.match(begins)?.length ?? 0
      return count(section.heading) * 20 + count(section.page) * 5 + Math.min(count(section.text), 5)
    })
    return counts.includes(0) ? [] : [{ section, score: counts.reduce((sum, each) => sum + each) }]
  })
  return found.sort((a, b) => b.score - a.score).slice(0, FOUND_MAX)
}

function show(found, words) {
  const items = found.map(({ section }, nth) => {
    const item = element('li', { role: 'presentation' })
    const attributes = { role: 'option', id: `found-${nth}`, 'aria-selected': 'false', tabindex: '-1' }
    const option = element('a', { ...attributes, href: section.path })
    const where = element('span', { class: 'where' })
    where.append(section.page === section.heading ? section.page : `${section.page} › ${section.heading}`)
    option.append(where, marked(snippetOf(section.text, words), words))
    item.append(option)
    return item
  })
  list.replaceChildren(...items)
  chosen = -1
  input.removeAttribute('aria-activedescendant')
  input.setAttribute('aria-expanded', String(found.length > 0))
  list.hidden = found.length === 0
  said.textContent = found.length === 0 ? 'Nothing found.' : `${found.length} found, go on with the arrow keys.`
  said.classList.toggle('nothing', found.length === 0)
}

function choose(wanted) {
  if (list.hidden || list.children.length === 0) return
  list.children[chosen]?.firstChild.setAttribute('aria-selected', 'false')
  chosen = (wanted + list.children.length) % list.children.length
  const option = list.children[chosen].firstChild
  option.setAttribute('aria-selected', 'true')
  option.scrollIntoView({ block: 'nearest' })
  input.setAttribute('aria-activedescendant', option.id)
}

function close() {
  list.hidden = true
  chosen = -1
  input.setAttribute('aria-expanded', 'false')
  input.removeAttribute('aria-activedescendant')
  said.textContent = ''
  said.classList.remove('nothing')
}

/** What stands around the first word that is found. */
function snippetOf(text, words) {
  const at = Math.max(0, text.search(new RegExp(words.map(escaped).join('|'), 'iu')) - 40)
  const from = at === 0 ? 0 : text.indexOf(' ', at) + 1
  const end = from + SNIPPET_LENGTH
  return `${from > 0 ? '… ' : ''}${text.slice(from, end)}${end < text.length ? ' …' : ''}`
}

/** The text with each word marked. It is set as text, never as HTML. */
function marked(text, words) {
  const snippet = element('span', { class: 'snippet' })
  for (const [nth, piece] of text.split(new RegExp(`(${words.map(escaped).join('|')})`, 'giu')).entries()) {
    if (nth % 2 === 0) snippet.append(piece)
    else snippet.append(Object.assign(document.createElement('mark'), { textContent: piece }))
  }
  return snippet
}

function wordsOf(text) {
  return text.trim().slice(0, 100).split(/\s+/).filter(Boolean)
}

function escaped(word) {
  return word.replaceAll(/[\\^$.*+?()[\]{}|/]/g, '\\$&')
}

function element(name, attributes) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  return made
}
