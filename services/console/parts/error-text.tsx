/** An error text that screen readers announce at once; nothing if empty. */
export function ErrorText({ text }: { readonly text: string }) {
  if (!text) return null
  return (
    <p class="error-text" role="alert">
      {text}
    </p>
  )
}
