/*
 * Adds a button to each code block. The button copies the text of the block.
 */
const FEEDBACK_MS = 1_500

for (const block of document.querySelectorAll('main pre')) {
  const frame = document.createElement('div')
  frame.className = 'code'
  const button = document.createElement('button')
  button.type = 'button'
  button.className = 'copy'
  button.textContent = 'Copy'
  button.addEventListener('click', async () => {
    button.textContent = (await copied(block.textContent.trimEnd(), button)) ? 'Copied' : 'Copy failed'
    setTimeout(() => {
      button.textContent = 'Copy'
    }, FEEDBACK_MS)
  })
  block.replaceWith(frame)
  frame.append(block, button)
}

/* Pages without TLS have no clipboard API, except on localhost. There, the text is selected in a field and copied. */
async function copied(text, button) {
  if (isSecureContext && navigator.clipboard) {
    return await navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    )
  }
  const field = document.createElement('textarea')
  field.value = text
  button.after(field)
  field.select()
  const isDone = document.execCommand('copy')
  field.remove()
  button.focus()
  return isDone
}
