// Requests to the studio's own server; addresses are relative, so the token stays where it is.

export class Refused extends Error {}

async function asked(path, options) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, { cache: "no-store", credentials: "omit", ...options });
  } catch {
    lost("The studio has ended. Start it again in the terminal: what you chose is kept.");
    throw new Refused("The studio has ended.");
  }
  const found = await answer.json().catch(() => ({ error: { message: `Answer ${answer.status}.` } }));
  if (!answer.ok) throw new Refused(found.error ? found.error.message : `Answer ${answer.status}.`);
  return found;
}

export const get = (path, query = {}) => {
  const words = new URLSearchParams(query).toString();
  return asked(words ? `${path}?${words}` : path);
};

export const post = (path, body = {}) =>
  asked(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

export function say(text) {
  document.getElementById("said").textContent = text;
}

function lost(text) {
  const place = document.getElementById("lost");
  place.textContent = text;
  place.hidden = false;
}

// Runs a change; what goes wrong is said, not thrown.
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(error.message);
    return null;
  }
}
