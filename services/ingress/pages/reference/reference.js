/* Script of the API reference: filters the items, and opens the item that the fragment of the URL names. */
const items = [...document.querySelectorAll('.item')]
const sections = [...document.querySelectorAll('.reference > section')]
const filter = document.querySelector('.filter')
const input = document.createElement('input')
Object.assign(input, { type: 'search', placeholder: 'Filter by path or word', autocomplete: 'off', spellcheck: false })
input.setAttribute('aria-label', 'Filter the endpoints')
const status = document.createElement('p')
status.role = 'status'
filter.append(input, status)

const texts = new Map(items.map((item) => [item, item.querySelector('summary').textContent.toLowerCase()]))

input.addEventListener('input', () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
  for (const item of items) item.hidden = !words.every((word) => texts.get(item).includes(word))
  for (const section of sections) section.hidden = !section.querySelector('.item:not([hidden])')
  const count = items.filter(({ hidden }) => !hidden).length
  status.textContent = words.length === 0 ? '' : count === 1 ? '1 match' : `${count} matches`
})

/* Opens the item that the fragment of the URL names. If the filter hides the item, then the filter is cleared. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)))
  if (!target?.classList.contains('item')) return
  if (target.hidden) {
    input.value = ''
    input.dispatchEvent(new Event('input'))
  }
  target.open = true
  target.scrollIntoView()
}

addEventListener('hashchange', openTarget)
openTarget()
