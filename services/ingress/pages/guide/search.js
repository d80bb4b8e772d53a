/**
 * Search of the guide in the browser: a combobox with a list of sections (WAI-ARIA Authoring Practices, combobox with
 * list autocomplete). The index is loaded at the first input. Keys: `/` focuses the search box, arrows select, Enter
 * opens, Escape closes.
 */
const RESULTS_MAX = 12
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
const list = element('ul', { id: 'found', role: 'listbox', 'aria-label': 'Search results', hidden: '' })
const status = element('p', { role: 'status', class: 'search-status' })
box.append(input, list, status)

let index
let selected = -1

input.addEventListener('input', () => void search())
input.addEventListener('focus', () => void (input.value && search()))
input.addEventListener('keydown', (event) => {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    event.preventDefault()
    select(selected + (event.key === 'ArrowDown' ? 1 : -1))
  } else if (event.key === 'Enter') list.children[Math.max(selected, 0)]?.firstChild.click()
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
    status.textContent = 'The search index could not be loaded. Try again.'
    return
  }
  // The user changed the input while the index was loaded. A later call of this function searches for the new words.
  if (wordsOf(input.value).join(' ') !== words.join(' ')) return
  show(find(sections, words), words)
}

/**
 * Returns sections in which each query word is the prefix of some word. Sections with matches in the heading come
 * first.
 */
function find(sections, words) {
  const found = sections.flatMap((section) => {
    const counts = words.map((word) => {
      const begins = new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}`, 'giu')
      const count = (text) => text.match(begins)?.length ?? 0
      return count(section.heading) * 20 + count(section.page) * 5 + Math.min(count(section.text), 5)
    })
    return counts.includes(0) ? [] : [{ section, score: counts.reduce((sum, each) => sum + each) }]
  })
  return found.sort((a, b) => b.score - a.score).slice(0, RESULTS_MAX)
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
  selected = -1
  input.removeAttribute('aria-activedescendant')
  input.setAttribute('aria-expanded', String(found.length > 0))
  list.hidden = found.length === 0
  status.textContent = found.length === 0 ? 'No results.' : `${found.length} results. Use the arrow keys to select.`
  status.classList.toggle('nothing', found.length === 0)
}

function select(index) {
  if (list.hidden || list.children.length === 0) return
  list.children[selected]?.firstChild.setAttribute('aria-selected', 'false')
  selected = (index + list.children.length) % list.children.length
  const option = list.children[selected].firstChild
  option.setAttribute('aria-selected', 'true')
  option.scrollIntoView({ block: 'nearest' })
  input.setAttribute('aria-activedescendant', option.id)
}

function close() {
  list.hidden = true
  selected = -1
  input.setAttribute('aria-expanded', 'false')
  input.removeAttribute('aria-activedescendant')
  status.textContent = ''
  status.classList.remove('nothing')
}

function snippetOf(text, words) {
  const at = Math.max(0, text.search(new RegExp(words.map(escaped).join('|'), 'iu')) - 40)
  const from = at === 0 ? 0 : text.indexOf(' ', at) + 1
  const end = from + SNIPPET_LENGTH
  return `${from > 0 ? '… ' : ''}${text.slice(from, end)}${end < text.length ? ' …' : ''}`
}

/** Returns the text with highlighted matches. Inserts text nodes only, never HTML. */
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
